"""Polls a job until it is over, whatever happens to the connection: one connection, one process on the host."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.job import Verdict
from eagle3.gpu_host.remote_job import parse_poll
from eagle3.gpu_host.shell import AsyncsshShell, Dialogue, PollFailed, Unreachable
from eagle3.orchestrate.watch import JobWatch

MAX_RETRY_SECONDS = 30.0
POLL_FAILS_SECONDS = 600.0
MAX_SILENT_WORD_SECONDS = 600.0  # an outage is told at once, then ever more rarely


@dataclass(frozen=True)
class Listener:
    """Who hears of the job: `tell` gets the lines for the task log, `show` the progress whenever it changes, `keep` the
    state to go on from, whenever something was told."""

    tell: Callable[[str], None]
    show: Callable[[dict[str, Any]], Awaitable[None]]
    keep: Callable[[dict[str, Any]], Awaitable[None]]


async def poll_until_over(
    watch: JobWatch,
    connect: Callable[[], AbstractAsyncContextManager[AsyncsshShell]],
    poll_seconds: float,
    unreachable_seconds: float,
    listener: Listener,
) -> dict[str, Any]:
    """The outcome of `watch` (see `JobWatch.outcome`), or the verdict `refused` or `unreachable` with a message.

    Polls when news are due by the job's own pace, at the latest after `poll_seconds`, so that no end goes unnoticed for
    longer. A host that cannot be reached is no failure of the job: the polling goes on for `unreachable_seconds`
    without a single answer, and for POLL_FAILS_SECONDS where the host answers but the polling fails there.
    """
    last_answer, next_word = time.monotonic(), 0.0

    def answered() -> None:
        nonlocal last_answer, next_word
        last_answer, next_word = time.monotonic(), 0.0

    while True:
        try:
            async with connect() as shell, shell.dialogue(watch.follow_command()) as host:
                await _follow(watch, host, poll_seconds, listener, answered)
                if watch.needs_whole_log:
                    watch = await _read_again(watch, host)
            return watch.outcome()
        except ConfigError as error:
            return {"verdict": str(Verdict.REFUSED), "message": str(error)}
        except Unreachable as error:
            silent_seconds = time.monotonic() - last_answer
            limit = POLL_FAILS_SECONDS if isinstance(error, PollFailed) else unreachable_seconds
            if silent_seconds > limit:
                message = (
                    f"{error}; silent for {silent_seconds:.0f} s. The job is untouched: a retry re-attaches. "
                    f"{watch.look_further}"
                )
                return {"verdict": str(Verdict.UNREACHABLE), "message": message}
            if silent_seconds >= next_word:
                what = "no answer" if isinstance(error, PollFailed) else "unreachable"
                listener.tell(f"{what} for {silent_seconds:.0f} s, the job goes on: {error}")
                next_word = silent_seconds + min(MAX_SILENT_WORD_SECONDS, max(1.0, silent_seconds))
            await asyncio.sleep(min(MAX_RETRY_SECONDS, max(poll_seconds, silent_seconds / 4)))


async def _follow(
    watch: JobWatch, host: Dialogue, poll_seconds: float, listener: Listener, answered: Callable[[], None]
) -> None:
    shown = None
    while not watch.is_over:
        lines = watch.take(parse_poll(await host.ask(watch.question())))
        answered()
        for line in lines:
            listener.tell(line)
        if lines:
            await listener.keep(watch.as_state())
        if (progress := watch.progress()) != shown:
            shown = progress
            await listener.show(progress)
        if not watch.is_over and not watch.has_more:
            await asyncio.sleep(watch.seconds_to_next_poll(at_most=poll_seconds))


async def _read_again(watch: JobWatch, host: Dialogue) -> JobWatch:
    watch = watch.afresh()
    while not watch.is_over:
        watch.take(parse_poll(await host.ask(watch.question())))
    return watch
