"""Makes the vLLM server of the GPU host the wanted one: a supervised job, started detached, that outlives the step."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle3.contract.errors import JobFailed
from eagle3.contract.run_dir import write_json
from eagle3.remote import supervisor
from eagle3.remote.dataset import Prompt
from eagle3.remote.server_command import ServerDescription, describe_server
from eagle3.remote.server_log import LoadLog
from eagle3.remote.server_shutdown import stop
from eagle3.remote.server_watch import (
    POLL_SECONDS,
    is_alive,
    log_end,
    log_path,
    recorded_description,
    require_alive,
    waiting_for,
    while_serving,
)
from eagle3.remote.step import Step
from eagle3.remote.vllm_client import RequestFailed, Sampling, VllmClient

FIRST_PROMPT = Prompt("first", [{"role": "user", "content": "Say hello."}])


def ensure(step: Step, checkpoint: Path | None) -> dict[str, Any]:
    """Serve the spec's target, with the draft head `checkpoint` or plain: keep the server that does, replace another.

    A server that is still loading is waited for, not started again. Raises ConfigError (port held by somebody else,
    wrong arguments) and JobFailed (the server died or stands still).
    """
    started = time.monotonic()
    wanted = describe_server(step, checkpoint)
    action = "started"
    if is_alive(step):
        difference = wanted.difference(recorded_description(step))
        if difference is None:
            try:
                _wait_until_serving(step)
                return _result(step, wanted, "kept", started)
            except JobFailed as error:
                difference = f"it does not answer: {error}"
        step.events.warning(f"replacing the running server: {difference}")
        action = "replaced"
    stop(step)
    _start(step, wanted)
    _wait_until_serving(step)
    return _result(step, wanted, action, started)


def _start(step: Step, wanted: ServerDescription) -> None:
    work_dir = step.run_dir.work_dir
    write_json(work_dir.server_description_path, {**wanted.as_record(), "started_at": time.time()})
    step.events.phase("starting")
    supervisor.launch(
        work_dir.server_dir,
        {
            "job_id": "server",
            "argv": wanted.argv,
            "env": wanted.environment,
            "cwd": str(work_dir.server_dir),
            "gpu_lock": str(work_dir.gpu_lock_path),
            "restart_finished": True,
        },
    )


def _wait_until_serving(step: Step) -> None:
    asyncio.run(_load_and_answer(step))
    step.events.phase("serving")


async def _load_and_answer(step: Step) -> None:
    async with VllmClient(step.spec) as client:
        await _wait_for_gpus(step)
        await _load(step, client)
        require_alive(step, "serving")
        try:
            greedy = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=4, seed=0)
            await while_serving(step, client.answer(FIRST_PROMPT, greedy))
        except RequestFailed as error:
            raise JobFailed("no_completion", f"the server is up, but cannot complete a prompt: {error}") from error


async def _wait_for_gpus(step: Step) -> None:
    """As long as it takes: the holder is a live job, and its own limits end it."""
    if holder := waiting_for(step):
        step.events.phase("waiting_for_gpus")
        step.events.warning(f"the server waits for the GPUs, which {holder} holds")
        while waiting_for(step):
            await asyncio.sleep(POLL_SECONDS)


async def _load(step: Step, client: VllmClient) -> None:
    """Report the load until the server is healthy, for as long as it moves."""
    log = LoadLog(log_path(step))
    if await client.is_healthy():
        return
    step.events.phase(log.state.phase)
    while not await client.is_healthy():
        require_alive(step, log.state.phase)
        _report(step, log)
        if age := log.stalled_seconds:
            phase = log.state.phase
            raise JobFailed("stalled", f"the server stands still in {phase} for {age:.0f} s\n{log_end(step)}")
        await asyncio.sleep(POLL_SECONDS)
    _report(step, log)


def _report(step: Step, log: LoadLog) -> None:
    """Pass on what the log has to say since last time."""
    for before, state in pairwise([log.state, *log.read()]):
        if state.phase != before.phase:
            step.events.phase(state.phase)
        if state.shards and state.shards != before.shards:
            step.events.progress(*state.shards, "shards")


def _result(step: Step, description: ServerDescription, action: str, started: float) -> dict[str, Any]:
    return {
        "action": action,
        "url": step.spec.server_url,
        "model": description.model,
        "checkpoint": description.checkpoint,
        "seconds": round(time.monotonic() - started, 1),
    }
