"""Faults in a running Airflow (scheduler, triggerer, SQLite) over real SSH; the steps are bash scripts.

The run's `host_python` is a stand-in that hands `-m eagle3.remote STEP` to a script and everything else, the supervisor
above all, to the real interpreter.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle3.demo.site import Site
from eagle3.pipeline.names import PIPELINE_DAG_ID

pytestmark = [pytest.mark.live, pytest.mark.airflow, pytest.mark.timeout(400)]

RUNS = f"/dags/{PIPELINE_DAG_ID}/dagRuns"


def eventually(what: str, condition, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.5)
    return value


class Run:
    """A run of the pipeline whose first step, preflight, is a script; the later ones are not reached."""

    def __init__(self, api: httpx.Client, python: Any) -> None:
        self.api = api
        self.python = python
        conf = {"preset": "toy", "host_python": str(python.path)}
        answer = api.post(RUNS, json={"conf": conf, "logical_date": None})
        answer.raise_for_status()
        self.id = answer.json()["dag_run_id"]

    @property
    def task(self) -> dict[str, Any]:
        return self.api.get(f"{RUNS}/{self.id}/taskInstances/preflight").json()

    @property
    def starts(self) -> list[int]:
        return self.python.starts

    def wait_until(self, state: str, seconds: float = 120) -> None:
        eventually(f"{state}, is {self.task['state']}", lambda: self.task["state"] == state, seconds)

    def wait_until_watched(self) -> int:
        """Deferred, with progress shown; returns the step's pid."""
        self.wait_until("deferred")
        path = f"{RUNS}/{self.id}/taskInstances/preflight/xcomEntries/progress"
        eventually("the trigger polls", lambda: self.api.get(path).status_code == 200)
        return self.starts[-1]

    def mark(self, state: str) -> None:
        self.api.patch(f"{RUNS}/{self.id}/taskInstances/preflight", json={"new_state": state}).raise_for_status()

    def log(self, attempt: int) -> list[str]:
        answer = self.api.get(f"{RUNS}/{self.id}/taskInstances/preflight/logs/{attempt}?full_content=true")
        return [record["event"] for record in answer.json()["content"]]

    def stop(self) -> None:
        self.api.patch(f"{RUNS}/{self.id}", json={"state": "failed"})
        eventually("the run ends", lambda: self.api.get(f"{RUNS}/{self.id}").json()["state"] in ("failed", "success"))


@pytest.fixture
def start(api, site, scripted_python):
    runs = []

    def start(script: str, **kwargs: str) -> Run:
        folder = site.work_dir / f"script-{time.monotonic_ns()}"
        runs.append(Run(api, scripted_python(folder, script, only_step="preflight", **kwargs)))
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def component_pid(site: Site, name: str) -> int:
    """The process of one of Airflow's components that this site's keeper started."""
    keeper = json.loads(site.keeper_path.read_text())["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    (pid,) = (int(pid) for pid in children if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
    return pid


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_deferred_task_ends_its_whole_job(start, state):
    run = start("sleep 300 & sleep 300")
    pid = run.wait_until_watched()
    run.mark(state)
    eventually("the job's processes are gone", lambda: not is_alive(pid), 60)
    assert eventually("exit file", lambda: (run.python.job_dir / "exit.json").exists())
    assert json.loads((run.python.job_dir / "exit.json").read_text())["reason"] == "killed"
    assert len(run.starts) == 1


def test_clearing_a_deferred_task_ends_the_old_job_and_starts_one_new(start):
    run = start("sleep 300")
    old = run.wait_until_watched()
    body = {"dry_run": False, "task_ids": ["preflight"], "dag_run_id": run.id, "only_failed": False}
    run.api.post(f"/dags/{PIPELINE_DAG_ID}/clearTaskInstances", json=body).raise_for_status()
    eventually("a second start", lambda: len(run.starts) == 2)
    eventually("the old one is gone", lambda: not is_alive(old), 60)
    time.sleep(10)  # the old trigger's on_kill comes late; it must not hit the new attempt
    assert is_alive(run.starts[1])
    assert len(run.starts) == 2


def test_a_failed_step_is_tried_again_and_the_log_says_why(start):
    run = start(
        '[ $(wc -l < "$(dirname $0)/starts") -gt 1 ] && { ' + "finish; exit 0; }\n"
        'echo "RuntimeError: CUDA error: an illegal memory access was encountered"; exit 3'
    )
    run.wait_until("success", 180)
    assert len(run.starts) == 2
    first = "\n".join(run.log(1))
    assert "exit code 3" in first or "illegal memory access" in first
    assert any("illegal memory access" in line for line in run.log(1))


def test_a_killed_triggerer_is_replaced_and_nothing_runs_twice(start, site):
    run = start("sleep 25; finish")
    pid = run.wait_until_watched()
    os.kill(component_pid(site, "triggerer"), signal.SIGKILL)
    run.wait_until("success", 200)
    assert run.starts == [pid]


def test_a_scheduler_killed_while_submitting_leaves_one_job_that_the_next_try_attaches_to(start, site):
    run = start("sleep 100; finish", after_launch="sleep 20")
    eventually("the job is there", lambda: run.starts)
    os.killpg(component_pid(site, "scheduler"), signal.SIGKILL)  # and with it the worker that waits for the answer
    run.wait_until("success", 280)
    assert len(run.starts) == 1
    last_try = run.task["try_number"]
    assert any("attached" in line for line in run.log(last_try)), run.log(last_try)


def test_an_unknown_key_fails_the_first_task_with_the_allowed_ones(api):
    answer = api.post(RUNS, json={"conf": {"preset": "toy", "epoch": 3}, "logical_date": None})
    run_id = answer.json()["dag_run_id"]
    path = f"{RUNS}/{run_id}/taskInstances/preflight"
    eventually("preflight failed", lambda: api.get(path).json()["state"] == "failed")
    records = api.get(f"{path}/logs/1?full_content=true").json()["content"]
    said = " ".join(str(record) for record in records)
    assert "epoch. Allowed:" in said
    assert "epochs" in said
