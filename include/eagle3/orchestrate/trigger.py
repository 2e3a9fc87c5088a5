"""Watches one remote job from the triggerer.

Reads only. Submitting is the operator's; ending the job is on_kill's, when a user clears or marks the task.
"""

from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.orchestrate.hosts import connect_async
from eagle3.orchestrate.poll_loop import poll_until_over
from eagle3.orchestrate.watch import JobWatch
from eagle3.pipeline.names import PROGRESS_XCOM_KEY


class JobTrigger(BaseTrigger):
    """Polls until the job ends, or has reached a phase.

    :param job: `RemoteJob.to_dict()`
    :param until_phase: done as soon as this phase begins; None watches to the end
    :param poll_seconds: time between polls
    :param unreachable_seconds: how long the host may be silent before the task gives up (the job goes on)
    :param task_key: dag_id, run_id, task_id, map_index: where the progress is shown
    """

    def __init__(
        self,
        job: dict[str, str],
        until_phase: str | None,
        poll_seconds: float,
        unreachable_seconds: float,
        task_key: dict[str, Any],
    ) -> None:
        super().__init__()
        self.job = job
        self.until_phase = until_phase
        self.poll_seconds = poll_seconds
        self.unreachable_seconds = unreachable_seconds
        self.task_key = task_key
        self._watch = JobWatch(RemoteJob(**job), until_phase)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("job", "until_phase", "poll_seconds", "unreachable_seconds", "task_key")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        outcome = await poll_until_over(
            self._watch,
            lambda: connect_async(self.job["ssh_conn_id"]),
            self.poll_seconds,
            self.unreachable_seconds,
            tell=lambda line: self.log.info("%s", line),
            show=self._show,
        )
        yield TriggerEvent(outcome)

    async def _show(self, progress: dict[str, Any]) -> None:
        await XCom.aset(PROGRESS_XCOM_KEY, progress, **self.task_key)

    async def on_kill(self) -> None:
        """The user cleared or marked the task: end this attempt of the job, and no newer one."""
        job = RemoteJob(**self.job)
        async with connect_async(job.ssh_conn_id) as shell:
            output = await shell.run(job.kill_command(self._watch.attempt))
            self.log.info("ended job %s: %s", job.job_id, output.stdout.decode(errors="replace").strip())
