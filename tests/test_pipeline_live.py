"""The whole product on the toy target: Airflow with a real database, SSH, vLLM, speculators; driven by its commands."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle3.demo.site import Site, is_port_busy
from eagle3.pipeline.names import NIGHTLY_DAG_ID, PIPELINE_DAG_ID

pytestmark = [pytest.mark.live, pytest.mark.airflow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def finished_run(eagle3, up) -> subprocess.CompletedProcess[str]:
    return eagle3("demo", "--preset", "toy", seconds=1200)


@pytest.fixture(scope="module")
def run_id(finished_run) -> str:
    """`demo` says it in its first lines: `run manual__... of eagle3_pipeline`."""
    return next(line.split()[1] for line in finished_run.stdout.splitlines() if line.startswith("run "))


def task_states(api: httpx.Client, dag_id: str, run_id: str) -> dict[str, str]:
    tasks = api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100").json()["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def results(site: Site, dag_id: str) -> dict[str, Any]:
    """Of the DAG's newest run, by step."""
    run_dir = max((site.work_dir / "runs").glob(f"{dag_id}.*"), key=lambda path: path.stat().st_mtime)
    return {path.stem: json.loads(path.read_text()) for path in (run_dir / "results").glob("*.json")}


def test_up_prints_where_to_log_in(site, up):
    assert site.url in up.stdout
    assert site.password in up.stdout


def test_the_pipeline_trains_a_head_that_the_live_server_accepts(finished_run, run_id, api):
    assert finished_run.returncode == 0, finished_run.stdout + finished_run.stderr
    last = finished_run.stdout.strip().splitlines()[-1]
    words = last.split()
    assert words[:2] == ["acceptance", "length"], last
    assert last.endswith("(untrained 1.00)")
    assert float(words[2]) > 1.5
    states = task_states(api, PIPELINE_DAG_ID, run_id)
    assert set(states.values()) == {"success"}, states


def test_what_each_step_left_fits_together(finished_run, site):
    found = results(site, PIPELINE_DAG_ID)
    traces, states = found["generate_traces"], found["extract_hidden_states"]
    assert traces["num_traces"] == traces["rows_with_reasoning"] == states["rows"]
    assert traces["prompt_tokens"] + traces["generated_tokens"] == states["tokens"]
    assert found["verify_hidden_states"]["missing"] == 0
    assert found["verify_hidden_states"]["num_bytes"] == states["num_bytes"]
    assert found["train_draft"]["epochs"]
    assert found["measure_baseline"]["prompts"] == found["evaluate_draft"]["prompts"]
    assert Path(found["report"]["report"]).exists()


def test_the_plain_server_is_back_and_answers(finished_run, site):
    description = json.loads((site.work_dir / "server" / "server.json").read_text())
    assert description["checkpoint"] is None
    model = httpx.get("http://127.0.0.1:8100/v1/models", timeout=30).json()["data"][0]["id"]
    body = {"model": model, "prompt": "1", "max_tokens": 2}
    answer = httpx.post("http://127.0.0.1:8100/v1/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] >= 1


def test_the_task_log_has_exact_counts_and_stays_short(run_id, api):
    path = f"/dags/{PIPELINE_DAG_ID}/dagRuns/{run_id}/taskInstances/wait_for_extraction/logs/1"
    lines = [record["event"] for record in api.get(path, params={"full_content": "true"}).json()["content"]]
    progress = [line for line in lines if line.startswith("generating")]
    assert any("tokens (100 %)" in line for line in progress), lines
    assert len(lines) < 60


def test_secrets_are_in_no_log_and_no_trigger_row(finished_run, site):
    private_key = (site.ssh_dir / "client_key").read_text().splitlines()[1]
    for folder in (site.airflow_home / "logs", site.work_dir / "jobs", site.log_dir):
        for path in folder.rglob("*"):
            if path.is_file():
                assert private_key not in path.read_text(errors="replace"), path
    assert private_key.encode() not in (site.airflow_home / "airflow.db").read_bytes()


def test_unknown_and_wrong_values_are_refused(api, up):
    runs = f"/dags/{PIPELINE_DAG_ID}/dagRuns"
    wrong = api.post(runs, json={"conf": {"epochs": -3}, "logical_date": None})
    assert wrong.status_code == 400
    assert "epochs" in wrong.text


def nightly(api: httpx.Client) -> dict[str, str]:
    """One run of the nightly DAG to its end; the states of its tasks."""
    import time

    conf = {"preset": "toy-nightly"}
    run_id = api.post(f"/dags/{NIGHTLY_DAG_ID}/dagRuns", json={"conf": conf, "logical_date": None}).json()["dag_run_id"]
    while api.get(f"/dags/{NIGHTLY_DAG_ID}/dagRuns/{run_id}").json()["state"] in ("queued", "running"):
        time.sleep(2)
    return task_states(api, NIGHTLY_DAG_ID, run_id)


def test_nightly_extracts_what_is_new_then_skips_with_a_reason(finished_run, api, site):
    api.patch(f"/dags/{NIGHTLY_DAG_ID}", json={"is_paused": False}).raise_for_status()
    first = nightly(api)
    assert set(first.values()) == {"success"}, first
    assert results(site, NIGHTLY_DAG_ID)["find_changes"]["changed"] is True
    second = nightly(api)
    assert second.pop("preflight") == second.pop("find_changes") == "success"
    assert set(second.values()) == {"skipped"}, second
    assert "nothing is new" in results(site, NIGHTLY_DAG_ID)["find_changes"]["reason"]


def test_down_leaves_nothing_behind(finished_run, eagle3, site):
    assert eagle3("down", seconds=120).returncode == 0
    assert not is_port_busy(site.airflow_port)
    assert not is_port_busy(8100)
    marker = str(site.root).encode()
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.name != str(os.getpid()) and marker in (process / "cmdline").read_bytes():
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    assert left == []
