"""Names that the DAGs and those who trigger or look at them share."""

PIPELINE_DAG_ID = "eagle3_pipeline"
NIGHTLY_DAG_ID = "eagle3_nightly_reextraction"
SSH_CONN_ID = "eagle3_gpu_host"
PROGRESS_XCOM_KEY = "progress"
VERDICT_XCOM_KEY = "verdict"  # how the watching ended; not there when a user ended it
WATCH_KEY = "watch"  # how far a job was told: XCom of a trigger, task state of a sensor that reschedules
