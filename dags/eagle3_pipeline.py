"""The whole EAGLE-3 pipeline: traces, extraction, vocabulary, training, evaluation, report."""

from airflow.configuration import conf
from airflow.sdk import DAG, TaskGroup

from eagle3.orchestrate.form import form
from eagle3.orchestrate.gate import (
    DEFAULT_ARGS,
    extraction_group,
    launched_step,
    remote_step,
    server_gate,
    watch,
)
from eagle3.pipeline.names import PIPELINE_DAG_ID

with DAG(
    PIPELINE_DAG_ID,
    description="Trains an EAGLE-3 draft model for the target that a vLLM server on the GPU host serves",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    params=form(conf.get("eagle3", "preset", fallback="demo")),
    default_args=DEFAULT_ARGS,
    tags=["eagle3"],
    doc_md=__doc__,
):
    preflight = remote_step("preflight")

    with TaskGroup("traces", prefix_group_id=False):
        generate_traces = remote_step("generate_traces")
        preflight >> remote_step("ensure_server") >> generate_traces

    stop_server, start_server, verify_hidden_states = extraction_group()
    generate_traces >> stop_server

    with TaskGroup("training", prefix_group_id=False):
        build_vocab_mapping = remote_step("build_vocab_mapping")
        train_draft = launched_step("train_draft")
        wait_for_training = watch("train_draft", "wait_for_training")
        # after the server is back: its start must find the GPU memory that it measures
        [verify_hidden_states, start_server, build_vocab_mapping] >> train_draft >> wait_for_training
    generate_traces >> build_vocab_mapping

    with TaskGroup("evaluation", prefix_group_id=False):
        # until the baseline is measured the plain server runs: from here on it has to be brought back
        measure_baseline = remote_step("measure_baseline")
        restore_server = server_gate(measure_baseline, "restore_server")
        with restore_server:
            evaluate_draft = remote_step("evaluate_draft")
            remote_step("serve_draft") >> evaluate_draft
    wait_for_training >> measure_baseline

    [evaluate_draft, restore_server] >> remote_step("report")
