"""Every night: traces and hidden states for what is new since the last run. Skips, with the reason, when nothing is."""

from airflow.configuration import conf
from airflow.sdk import DAG, CronTriggerTimetable

from eagle3.orchestrate.form import form
from eagle3.orchestrate.gate import DEFAULT_ARGS, extraction_group, remote_step, skip_unless_changed
from eagle3.pipeline.names import NIGHTLY_DAG_ID

with DAG(
    NIGHTLY_DAG_ID,
    description="Extracts hidden states again for new prompts or a new target, behind the server gate",
    schedule=CronTriggerTimetable("0 2 * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    params=form(conf.get("eagle3", "nightly_preset", fallback="kimi-k2.5-nightly")),
    default_args=DEFAULT_ARGS,
    tags=["eagle3"],
    doc_md=__doc__,
):
    every_night = {"folder_per_run": False}  # one folder on the host: each night goes on where the last one ended

    preflight = remote_step("preflight", **every_night)
    find_changes = remote_step("find_changes", **every_night)
    ensure_server = remote_step("ensure_server", **every_night)
    generate_traces = remote_step("generate_traces", **every_night)
    stop_server, start_server, verify_hidden_states = extraction_group(**every_night)

    preflight >> find_changes >> skip_unless_changed(find_changes.output) >> ensure_server >> generate_traces
    generate_traces >> stop_server
