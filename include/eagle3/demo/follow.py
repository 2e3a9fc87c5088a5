"""Follows a run of the pipeline in the terminal: one live line a running task, one lasting line a finished one."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from eagle3.contract.errors import ConfigError
from eagle3.demo.lifecycle import access_token
from eagle3.demo.site import Site
from eagle3.pipeline.names import PIPELINE_DAG_ID, PROGRESS_XCOM_KEY

POLL_SECONDS = 2.0
ACTIVE = frozenset({"queued", "running", "deferred", "up_for_retry", "up_for_reschedule"})
TOLD = frozenset({"success", "failed", "skipped", "up_for_retry"})
OUTAGE_SECONDS = 120.0


class PipelineApi:
    """What is needed of Airflow's REST API, for one run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._client = httpx.Client(base_url=f"{site.url}/api/v2", timeout=30)
        self._run_url = ""
        self._log_in()

    def _log_in(self) -> None:
        self._client.headers["Authorization"] = f"Bearer {access_token(self._site)}"

    def trigger(self, conf: dict[str, Any]) -> str:
        """Start a run; returns its id. Raises ConfigError with Airflow's reason for a wrong value."""
        answer = self._client.post(f"/dags/{PIPELINE_DAG_ID}/dagRuns", json={"conf": conf, "logical_date": None})
        if answer.status_code >= 400:
            raise ConfigError(f"Airflow refuses to start the run: {answer.json().get('detail', answer.text)}")
        run_id = answer.json()["dag_run_id"]
        self._run_url = f"/dags/{PIPELINE_DAG_ID}/dagRuns/{run_id}"
        return run_id

    def _get(self, path: str) -> Any:
        """The answer's JSON, or None for 404. Rides out a restart of the API server, for a while."""
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                answer = self._client.get(self._run_url + path)
                if answer.status_code == 401:  # the token has a lifetime, a run may be longer
                    self._log_in()
                    continue
                if answer.status_code == 404:
                    return None
                answer.raise_for_status()
                return answer.json()
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def run_state(self) -> str:
        return self._get("")["state"]

    def tasks(self) -> list[dict[str, Any]]:
        return self._get("/taskInstances?limit=100")["task_instances"]

    def xcom(self, task_id: str, key: str) -> Any:
        entry = self._get(f"/taskInstances/{task_id}/xcomEntries/{key}")
        return entry["value"] if entry else None

    def log_end(self, task: dict[str, Any], num_lines: int = 15) -> list[str]:
        answer = self._get(f"/taskInstances/{task['task_id']}/logs/{task['try_number']}?full_content=true")
        lines: list[str] = []
        for record in (answer or {}).get("content", []):
            lines += [error["exc_value"] for error in record.get("error_detail") or []]
            if record.get("level") != "debug" and not record["event"].startswith("::"):
                lines.append(record["event"])
        return lines[-num_lines:]


def follow(api: PipelineApi, console: Console) -> bool:
    """Until the run ends; True when it succeeded."""
    shown: dict[str, tuple[str, int]] = {}
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            state = api.run_state()  # before the tasks, so that the last ones are shown when it has ended
            tasks = sorted(api.tasks(), key=lambda task: task["start_date"] or "~")
            for line in _news(api, tasks, shown):
                console.print(line, highlight=False, soft_wrap=True)
            live.update(Group(*_running_lines(api, tasks)))
            if state in ("success", "failed"):
                return state == "success"
            time.sleep(POLL_SECONDS)


def _news(api: PipelineApi, tasks: list[dict[str, Any]], shown: dict[str, tuple[str, int]]) -> Iterator[str]:
    """A line for each task that ended, and for each try that failed."""
    for task in tasks:
        name, state = task["task_id"], task["state"]
        key = (state, task["try_number"])
        if state not in TOLD or shown.get(name) == key:
            continue
        shown[name] = key
        seconds = f"{task['duration']:.0f} s" if task["duration"] else ""
        result = api.xcom(name, "return_value") if state == "success" else None
        yield f"{_MARKS.get(state, '-')} {name:<22} {seconds:>6}  {_summary(result) if state == 'success' else state}"
        if state in ("failed", "up_for_retry"):
            yield from (f"    {line}" for line in api.log_end(task))


_MARKS = {"success": "✓", "failed": "✗", "up_for_retry": "↻"}


def _running_lines(api: PipelineApi, tasks: list[dict[str, Any]]) -> Iterator[Text]:
    for task in tasks:
        if task["state"] in ACTIVE:
            progress = api.xcom(task["task_id"], PROGRESS_XCOM_KEY) if task["state"] != "queued" else None
            yield Text(f"… {task['task_id']:<22}         {progress['line'] if progress else task['state']}")


def _summary(result: Any) -> str:
    """The plain values of a step's result, as one line."""
    if not isinstance(result, dict):
        return ""
    parts = []
    for name, value in result.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:,.3g}" if abs(value) < 1000 else f"{name} {value:,.0f}")
        elif isinstance(value, int) and not isinstance(value, bool):
            parts.append(f"{name} {value:,}")
    return ", ".join(parts[:6])
