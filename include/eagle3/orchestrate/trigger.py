"""Watches one remote job from the triggerer: one connection, one command a poll, one event at the end.

Reads only. Submitting is the operator's; ending the job is on_kill's, when a user clears or marks the task.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from eagle3.contract.errors import ConfigError
from eagle3.gpu_host.remote_job import RemoteJob, parse_poll
from eagle3.gpu_host.shell import AsyncsshShell, Unreachable
from eagle3.orchestrate.hosts import connect_async
from eagle3.orchestrate.watch import JobWatch
from eagle3.pipeline.names import PROGRESS_XCOM_KEY

ON_KILL_SECONDS = 60.0


class JobTrigger(BaseTrigger):
    """Polls until the job ends, or has reached a phase.

    :param job: `RemoteJob.to_dict()`
    :param until_phase: done as soon as this phase begins; None watches to the end
    :param poll_seconds: time between polls
    :param unreachable_seconds: how long the host may be silent before the task gives up (the job goes on)
    :param task: dag_id, run_id, task_id, map_index: where the progress is shown
    """

    def __init__(
        self,
        job: dict[str, str],
        until_phase: str | None,
        poll_seconds: float,
        unreachable_seconds: float,
        task: dict[str, Any],
    ) -> None:
        super().__init__()
        self.job = job
        self.until_phase = until_phase
        self.poll_seconds = poll_seconds
        self.unreachable_seconds = unreachable_seconds
        self.task_key = task
        self._attempt: int | None = None
        self._shown: dict[str, Any] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__name__}",
            {
                "job": self.job,
                "until_phase": self.until_phase,
                "poll_seconds": self.poll_seconds,
                "unreachable_seconds": self.unreachable_seconds,
                "task": self.task_key,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watch = JobWatch(RemoteJob(**self.job), self.until_phase)
        last_answer = time.monotonic()
        while True:
            try:
                async with connect_async(self.job["ssh_conn_id"]) as shell:
                    while not watch.is_over:
                        await self._poll(watch, shell)
                        last_answer = time.monotonic()
                        if not watch.is_over and not watch.has_more:
                            await asyncio.sleep(self.poll_seconds)
                yield TriggerEvent(watch.outcome())
                return
            except ConfigError as error:
                yield TriggerEvent({"verdict": "refused", "message": str(error)})
                return
            except Unreachable as error:
                silent_seconds = time.monotonic() - last_answer
                self.log.warning("unreachable for %.0f s, the job goes on: %s", silent_seconds, error)
                if silent_seconds > self.unreachable_seconds:
                    message = (
                        f"{error}; unreachable for {silent_seconds:.0f} s. The job is untouched: a retry re-attaches"
                    )
                    yield TriggerEvent({"verdict": "unreachable", "message": message})
                    return
                await asyncio.sleep(min(30.0, max(self.poll_seconds, silent_seconds / 4)))

    async def _poll(self, watch: JobWatch, shell: AsyncsshShell) -> None:
        output = await shell.run(watch.poll_command())
        poll = parse_poll(output.require_success(f"polling {self.job['job_id']}", shell.host))
        self._attempt = poll.state.attempt
        for line in watch.take(poll, time.time()):
            self.log.info("%s", line)
        progress = watch.progress()
        if progress != self._shown:
            self._shown = progress
            await XCom.aset(PROGRESS_XCOM_KEY, progress, **self.task_key)

    async def on_kill(self) -> None:
        """The user cleared or marked the task: end this attempt of the job, and no newer one."""
        job = RemoteJob(**self.job)
        async with connect_async(job.ssh_conn_id) as shell:
            output = await shell.run(job.kill_command(self._attempt), ON_KILL_SECONDS)
            self.log.info("ended job %s: %s", job.job_id, output.stdout.decode(errors="replace").strip())
