"""The DAGs as Airflow sees them: they load, are light, gate the server, and their triggers can be imported."""

import os
import subprocess
import sys

import pytest

from eagle3.pipeline.names import NIGHTLY_DAG_ID, PIPELINE_DAG_ID

PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
import eagle3.orchestrate.gate  # what is shared is paid for once
started = time.monotonic()
bag = DagBag(dag_folder=sys.argv[1])
seconds = time.monotonic() - started
heavy = [name for name in ("torch", "vllm", "transformers", "speculators", "safetensors") if name in sys.modules]
dags = {
    dag.dag_id: {
        "tasks": {
            task.task_id: {
                "upstream": sorted(task.upstream_task_ids), "retries": task.retries, "setup": task.is_setup,
                "teardown": task.is_teardown, "type": type(task).__name__,
            }
            for task in dag.tasks
        },
        "catchup": dag.catchup, "max_active_runs": dag.max_active_runs, "timeout": str(dag.dagrun_timeout),
        "schedule": type(dag.timetable).__name__, "params": sorted(dag.params),
    }
    for dag in bag.dags.values()
}
print(json.dumps({"errors": {k: str(v) for k, v in bag.import_errors.items()}, "seconds": seconds, "heavy": heavy,
                  "dags": dags}))
"""


@pytest.fixture(scope="session")
def airflow_environment(tmp_path_factory, repo_root) -> dict[str, str]:
    """An Airflow with a database of its own."""
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(repo_root / "plugins"),
        "PYTHONPATH": str(repo_root / "include"),
    }
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, capture_output=True)
    return environment


@pytest.fixture(scope="session")
def parsed(airflow_environment, repo_root):
    import json

    command = [sys.executable, "-c", PARSE, str(repo_root / "dags")]
    output = subprocess.run(command, env=airflow_environment, capture_output=True, text=True, check=True)
    return json.loads(output.stdout.splitlines()[-1])


def test_both_dags_load_without_errors_quickly_and_without_heavy_modules(parsed):
    assert parsed["errors"] == {}
    assert set(parsed["dags"]) == {PIPELINE_DAG_ID, NIGHTLY_DAG_ID}
    assert parsed["heavy"] == []
    assert parsed["seconds"] < 10


@pytest.mark.parametrize("dag_id", [PIPELINE_DAG_ID, NIGHTLY_DAG_ID])
def test_runs_are_one_at_a_time_without_catchup_or_a_timeout_that_skips_teardowns(parsed, dag_id):
    dag = parsed["dags"][dag_id]
    assert (dag["catchup"], dag["max_active_runs"], dag["timeout"]) == (False, 1, "None")


@pytest.mark.parametrize("dag_id", [PIPELINE_DAG_ID, NIGHTLY_DAG_ID])
def test_extraction_runs_between_stop_and_start_of_the_server(parsed, dag_id):
    tasks = parsed["dags"][dag_id]["tasks"]
    assert tasks["stop_server"]["setup"]
    assert tasks["start_server"]["teardown"]
    assert "stop_server" in tasks["start_server"]["upstream"]
    chain = ["stop_server", "extract_hidden_states", "wait_for_weights", "wait_for_extraction", "verify_hidden_states"]
    for upstream, task in zip(chain, [*chain[1:], "start_server"], strict=True):
        assert upstream in tasks[task]["upstream"], f"{task} does not wait for {upstream}"


def test_the_pipeline_has_the_issue_of_every_step_and_the_evaluation_brings_the_plain_server_back(parsed):
    tasks = parsed["dags"][PIPELINE_DAG_ID]["tasks"]
    assert tasks["restore_server"]["teardown"]
    assert "evaluate_draft" in tasks["restore_server"]["upstream"]
    assert tasks["build_vocab_mapping"]["upstream"] == ["generate_traces"], "it runs beside the extraction"
    assert {"start_server", "verify_hidden_states", "build_vocab_mapping"} <= set(tasks["train_draft"]["upstream"])
    assert "restore_server" in tasks["report"]["upstream"]


def test_every_remote_task_is_retried(parsed):
    for dag in parsed["dags"].values():
        for name, task in dag["tasks"].items():
            if task["type"] in ("StepOperator", "LaunchOperator", "JobSensor"):
                assert task["retries"] >= 1, name


def test_nightly_runs_by_cron(parsed):
    assert parsed["dags"][NIGHTLY_DAG_ID]["schedule"] == "CronTriggerTimetable"


def test_the_trigger_can_be_imported_with_the_triggerers_path_alone(airflow_environment, tmp_path):
    """The triggerer has neither dags/ nor the DAG bundle on its path: only PYTHONPATH."""
    code = "from eagle3.orchestrate.trigger import JobTrigger; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], env=airflow_environment, cwd=tmp_path, check=True)
