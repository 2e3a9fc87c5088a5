"""Whether the vLLM server of the GPU host is alive, is the wanted one, and still computes."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from eagle3.contract.errors import ConfigError, JobFailed
from eagle3.contract.run_dir import read_json
from eagle3.remote.job_folder import ALIVE, read_state
from eagle3.remote.server_command import describe_server
from eagle3.remote.server_log import decisive_line, last_lines
from eagle3.remote.step import Step
from eagle3.remote.vllm_client import RequestFailed, VllmClient

T = TypeVar("T")

POLL_SECONDS = 1.0
COUNTER_SECONDS = 30.0
SERVING_STALL_SECONDS = 900.0
DYING_SECONDS = 5.0


def is_alive(step: Step) -> bool:
    return read_state(step.run_dir.work_dir.server_dir)["status"] in ALIVE


def waiting_for(step: Step) -> str | None:
    """The job that holds the GPUs which the server waits for; None when it does not wait."""
    state = read_state(step.run_dir.work_dir.server_dir)
    return str(state.get("waiting_for") or "another job") if state["status"] == "waiting" else None


def require(step: Step, checkpoint: Path | None, remedy: str) -> None:
    """Raises ConfigError unless the wanted server runs; `remedy` is the step that starts it."""
    wanted = describe_server(step, checkpoint)
    if not is_alive(step):
        raise ConfigError(f"{step.name} needs the {wanted.kind}, but no server runs: run {remedy} first")
    if difference := wanted.difference(recorded_description(step)):
        raise ConfigError(f"{step.name} needs the {wanted.kind}, but another runs: {difference}; run {remedy} first")


async def while_serving(step: Step, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which sends requests. Raises JobFailed once the server is dead or computes nothing."""
    task = asyncio.create_task(work)
    processed, processed_at = -1, time.monotonic()
    try:
        async with VllmClient(step.spec) as client:
            asked_at = time.monotonic()
            while not (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
                require_alive(step, "serving")
                now = time.monotonic()
                if now - asked_at < COUNTER_SECONDS:
                    continue
                asked_at = now
                with contextlib.suppress(RequestFailed):  # counts as no progress
                    latest = (await client.metrics()).tokens_processed
                    if latest != processed:
                        processed, processed_at = latest, now
                if now - processed_at > SERVING_STALL_SECONDS:
                    age = f"{now - processed_at:.0f} s"
                    raise JobFailed("stalled", f"the server computed no token for {age}\n{log_end(step)}")
        return await task
    except RequestFailed:
        await asyncio.sleep(DYING_SECONDS)
        require_alive(step, "serving")  # its death explains more than the request that it took along
        raise
    finally:
        task.cancel()


def require_alive(step: Step, phase: str) -> None:
    """Raises JobFailed with the line that explains the death; ConfigError when vLLM refuses its arguments."""
    state = read_state(step.run_dir.work_dir.server_dir)
    if state["status"] in ALIVE:
        return
    end = f"exit code {state['exit_code']}" if "exit_code" in state else f"signal {state.get('signal', 'unknown')}"
    cause = decisive_line(log_path(step).read_text(errors="replace")) or "its log names no cause"
    cause = cause[:500]
    message = f"the vLLM server died in {phase} ({state['status']}, {end}): {cause}\n{log_end(step)}"
    if state.get("exit_code") == 2:  # the argument parser's
        raise ConfigError(message)
    raise JobFailed("server_died", message)


def recorded_description(step: Step) -> dict[str, Any]:
    """What the server was last started as; empty when there was none."""
    path = step.run_dir.work_dir.server_description_path
    return read_json(path) if path.exists() else {}


def log_path(step: Step) -> Path:
    return step.run_dir.work_dir.server_dir / "log"


def log_end(step: Step) -> str:
    """The end of the server's log and where the rest is, for an error message."""
    path = log_path(step)
    lines = last_lines(path.read_text(errors="replace"), 12) if path.exists() else []
    return "\n".join(["last lines of its log:", *(f"  {line[:300]}" for line in lines), f"whole log: {path}"])
