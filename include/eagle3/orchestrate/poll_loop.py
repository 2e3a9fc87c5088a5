"""Polls a job until it is over, whatever happens to the connection: one connection, one command a poll."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.job import Verdict
from eagle3.gpu_host.remote_job import parse_poll
from eagle3.gpu_host.shell import AsyncsshShell, Unreachable
from eagle3.orchestrate.watch import JobWatch

MAX_RETRY_SECONDS = 30.0


async def poll_until_over(
    watch: JobWatch,
    connect: Callable[[], AbstractAsyncContextManager[AsyncsshShell]],
    poll_seconds: float,
    unreachable_seconds: float,
    tell: Callable[[str], None],
    show: Callable[[dict[str, Any]], Awaitable[None]],
) -> dict[str, Any]:
    """The outcome of `watch` (see `JobWatch.outcome`), or the verdict `refused` or `unreachable` with a message.

    `tell` gets the lines for the task log, `show` the progress whenever it changes. A host that cannot be reached is
    no failure of the job: the polling goes on for `unreachable_seconds` without a single answer.
    """
    shown = None
    last_answer = time.monotonic()
    while True:
        try:
            async with connect() as shell:
                while not watch.is_over:
                    output = await shell.run(watch.poll_command())
                    poll = parse_poll(output.require_success("polling", shell.host))
                    last_answer = time.monotonic()
                    for line in watch.take(poll, time.time()):
                        tell(line)
                    if (progress := watch.progress()) != shown:
                        shown = progress
                        await show(progress)
                    if not watch.is_over and not watch.has_more:
                        await asyncio.sleep(poll_seconds)
            return watch.outcome()
        except ConfigError as error:
            return {"verdict": str(Verdict.REFUSED), "message": str(error)}
        except Unreachable as error:
            silent_seconds = time.monotonic() - last_answer
            if silent_seconds > unreachable_seconds:
                message = f"{error}; silent for {silent_seconds:.0f} s. The job is untouched: a retry re-attaches"
                return {"verdict": str(Verdict.UNREACHABLE), "message": message}
            tell(f"unreachable for {silent_seconds:.0f} s, the job goes on: {error}")
            await asyncio.sleep(min(MAX_RETRY_SECONDS, max(poll_seconds, silent_seconds / 4)))
