"""The operators where no triggerer runs: they launch, look, and reschedule; one job, one result."""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from eagle3.orchestrate.form import form
from eagle3.orchestrate.operators import JobSensor, LaunchOperator, StepOperator

MAX_STORED_BYTES = 65_535  # what Airflow's task state store takes


class Store:
    """As the task state store: JSON in, JSON out."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, key: str) -> Any:
        return json.loads(self._values[key]) if key in self._values else None

    def set(self, key: str, value: Any) -> None:
        self._values[key] = json.dumps(value)
        assert len(self._values[key]) <= MAX_STORED_BYTES

    def delete(self, key: str) -> None:
        self._values.pop(key, None)


class Run:
    """The context of one task instance, try after try."""

    def __init__(self, work_dir: str, host_python: str) -> None:
        params = {name: param.value for name, param in form("toy").items()}
        params |= {"ssh_conn_id": "scripted", "work_dir": work_dir, "host_python": host_python}
        self.context: dict[str, Any] = {
            "ti": SimpleNamespace(map_index=-1, try_number=1),
            "dag_run": SimpleNamespace(dag_id="d", run_id="r", conf={}, clear_number=0),
            "params": params,
            "task_state_store": Store(),
        }

    def until_done(self, operator: JobSensor, seconds: float = 30) -> Any:
        deadline = time.monotonic() + seconds
        while not (answer := operator.poke(self.context)).is_done:
            assert time.monotonic() < deadline
            time.sleep(0.3)
        return answer.xcom_value


@pytest.fixture
def run(tmp_path, asyncssh_host, scripted_python, monkeypatch):
    def make(script: str) -> tuple[Run, Any]:
        extra = {"key_file": str(asyncssh_host.client_key), "host_key": asyncssh_host.host_key_line}
        connection = {"conn_type": "ssh", "host": "127.0.0.1", "port": asyncssh_host.port, "login": asyncssh_host.login}
        monkeypatch.setenv("AIRFLOW_CONN_SCRIPTED", json.dumps({**connection, "extra": extra}))
        python = scripted_python(tmp_path / "python", script)
        return Run(str(tmp_path / "work"), str(python.path)), python

    return make


def test_a_step_is_launched_once_and_looked_at_until_it_is_done(run):
    task, python = run("sleep 2; finish")
    assert task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False)) == {"a": 1}
    assert len(python.starts) == 1


def test_the_spec_travels_to_the_host(run, tmp_path):
    task, _ = run("finish")
    task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False))
    (path,) = (tmp_path / "work" / "runs").glob("*/run_spec.json")
    assert json.loads(path.read_text())["preset"] == "toy"


def test_launch_and_sensor_share_one_job_and_a_retry_starts_a_dead_one(run):
    task, python = run('[ $(wc -l < "$(dirname $0)/starts") -gt 1 ] || exit 7; finish')
    LaunchOperator(task_id="extract_hidden_states", step="extract_hidden_states").execute(task.context)
    sensor = JobSensor(
        task_id="wait", step="extract_hidden_states", launched_by="extract_hidden_states", deferrable=False
    )
    with pytest.raises(AirflowException, match="exit code 7"):
        task.until_done(sensor)
    task.context["ti"].try_number = 2
    assert task.until_done(sensor) == {"a": 1}
    assert len(python.starts) == 2


def test_a_clear_runs_a_finished_step_again(run):
    task, python = run("finish")
    step = StepOperator(task_id="preflight", step="preflight", deferrable=False)
    task.until_done(step)
    task.context["ti"].try_number = 2
    task.until_done(step)
    assert len(python.starts) == 1, "a retry accepts what is done"
    task.context["dag_run"].clear_number = 1
    task.until_done(step)
    assert len(python.starts) == 2


def test_the_cause_that_an_earlier_poke_has_read_is_still_told(run):
    task, _ = run("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate'; sleep 3; echo bye; exit 1")
    with pytest.raises(AirflowException, match="CUDA out of memory"):
        task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False))


def test_what_the_user_must_fix_is_not_retried(run):
    error = '{"type": "ConfigError", "message": "set model_path"}'
    finished = f"""echo '{{"v": 1, "t": 1, "kind": "finished", "result": null, "error": {error}}}'"""
    task, _ = run(f"{finished} >> $EAGLE3_JOB_DIR/events.jsonl; exit 2")
    with pytest.raises(AirflowFailException, match="set model_path"):
        task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False))


def test_an_outage_is_no_failure_where_no_triggerer_runs(run, monkeypatch):
    """Row 5 for the sensor that reschedules itself. Seen to fail when a poke raises what `connect` raises."""
    task, python = run("sleep 2; finish")
    step = StepOperator(task_id="preflight", step="preflight", deferrable=False)
    assert not step.poke(task.context).is_done
    there = os.environ["AIRFLOW_CONN_SCRIPTED"]
    monkeypatch.setenv("AIRFLOW_CONN_SCRIPTED", json.dumps({**json.loads(there), "port": 1}))
    assert not step.poke(task.context).is_done
    assert not step.poke(task.context).is_done
    monkeypatch.setenv("AIRFLOW_CONN_SCRIPTED", there)
    assert task.until_done(step) == {"a": 1}
    assert len(python.starts) == 1


def test_exit_code_0_without_a_result_is_no_success(run):
    task, _ = run("exit 0")
    with pytest.raises(AirflowException, match="without a result"):
        task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False))


def test_a_missing_connection_is_named(run):
    task, _ = run("finish")
    task.context["params"]["ssh_conn_id"] = "no_such_host"
    with pytest.raises(AirflowFailException, match=r"no_such_host.*Admin > Connections"):
        task.until_done(StepOperator(task_id="preflight", step="preflight", deferrable=False))
