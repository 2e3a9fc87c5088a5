"""Watches one remote job from the triggerer.

Reads only. Submitting is the operator's; ending the job is on_kill's, when a user clears or marks the task.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from airflow.sdk import TaskInstanceState
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.orchestrate.hosts import connect_async
from eagle3.orchestrate.poll_loop import Listener, poll_until_over
from eagle3.orchestrate.watch import JobWatch
from eagle3.pipeline.names import PROGRESS_XCOM_KEY, VERDICT_XCOM_KEY, WATCH_KEY


class JobTrigger(BaseTrigger):
    """Polls until the job ends, or has reached a phase. Another triggerer goes on where this one was: what was told
    last is kept beside the task's XComs, and a second one at the same time does no harm.

    :param job: `RemoteJob.to_dict()`
    :param clear_number: the run's, when the task was deferred: what a later clear starts is not ours to end
    :param until_phase: done as soon as this phase begins; None watches to the end
    :param poll_seconds: longest time between polls
    :param unreachable_seconds: how long the host may be silent before the task gives up (the job goes on)
    :param task_key: dag_id, run_id, task_id, map_index: where the progress is shown
    """

    def __init__(
        self,
        job: dict[str, str],
        clear_number: int,
        until_phase: str | None,
        poll_seconds: float,
        unreachable_seconds: float,
        task_key: dict[str, Any],
    ) -> None:
        super().__init__()
        self.job = job
        self.clear_number = clear_number
        self.until_phase = until_phase
        self.poll_seconds = poll_seconds
        self.unreachable_seconds = unreachable_seconds
        self.task_key = task_key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("job", "clear_number", "until_phase", "poll_seconds", "unreachable_seconds", "task_key")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        state = await XCom.aget_one(key=WATCH_KEY, **self.task_key)
        outcome = await poll_until_over(
            JobWatch(RemoteJob(**self.job), self.until_phase, state),
            lambda: connect_async(self.job["ssh_conn_id"]),
            self.poll_seconds,
            self.unreachable_seconds,
            Listener(
                tell=lambda line: self.log.info("%s", line),
                show=partial(self._set, PROGRESS_XCOM_KEY),
                keep=partial(self._set, WATCH_KEY),
            ),
        )
        await self._set(VERDICT_XCOM_KEY, outcome["verdict"])
        yield TriggerEvent(outcome)

    async def _set(self, key: str, value: Any) -> None:
        await XCom.aset(key, value, **self.task_key)

    async def on_kill(self) -> None:
        """The user cleared or marked the task: end the job, unless a later clear has started it again.

        Airflow calls this as well in a triggerer that hung for a while, once another one watches the job or has told
        how it ended; that is no reason to end anything.
        """
        if await self._is_watched_elsewhere():
            self.log.info("another triggerer has taken over job %s, which goes on", self.job["job_id"])
            return
        job = RemoteJob(**self.job)
        async with connect_async(job.ssh_conn_id) as shell:
            output = await shell.run(job.kill_command(self.clear_number))
            self.log.info("ended job %s: %s", job.job_id, output.stdout.decode(errors="replace").strip())

    async def _is_watched_elsewhere(self) -> bool:
        dag_id, run_id, task_id = (self.task_key[name] for name in ("dag_id", "run_id", "task_id"))
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=dag_id, task_ids=[task_id], run_ids=[run_id]
        )
        if TaskInstanceState.DEFERRED in states.get(run_id, {}).values():
            return True
        return await XCom.aget_one(key=VERDICT_XCOM_KEY, **self.task_key) is not None
