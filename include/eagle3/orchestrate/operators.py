"""The operators of the DAGs: launch a step on the host, watch it, or both.

Where a triggerer runs they are deferrable and hold no worker slot; else (`[eagle3] deferrable = False`) they reschedule
themselves. Submitting is safe to repeat: a retry attaches to a running job, accepts a finished one, starts a dead one.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow.configuration import conf
from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from eagle3.contract.errors import ConfigError
from eagle3.contract.job import Verdict
from eagle3.gpu_host.code_bundle import bring_code
from eagle3.gpu_host.remote_job import RemoteJob, parse_poll
from eagle3.gpu_host.shell import ParamikoShell, Unreachable
from eagle3.orchestrate.hosts import connect
from eagle3.orchestrate.run_context import RunContext, run_context
from eagle3.orchestrate.trigger import JobTrigger
from eagle3.orchestrate.watch import JobWatch
from eagle3.pipeline.names import WATCH_KEY
from eagle3.pipeline.steps import step_named

POLL_SECONDS = 8.0  # at most; with the poll itself a failure is seen within ten
UNREACHABLE_SECONDS = 6 * 3600.0
UNREACHABLE_KEY = "unreachable_since"

T = TypeVar("T")


def launch(shell: ParamikoShell, run: RunContext, job: RemoteJob) -> dict[str, Any]:
    """Bring code and spec to the host and start the job, or attach to it. Returns the supervisor's answer."""
    step = step_named(job.step)
    bring_code(shell, job.code_dir, job.host_python)
    spec = run.spec.model_dump_json(indent=1).encode()
    shell.run(job.put_command(job.run_dir.run_spec_path, spec)).require_success("writing the run spec", shell.host)
    command = job.launch_command(run.clear_number, step.max_runtime_seconds, step.needs_gpu)
    return shell.run(command).require_json(f"launching {job.job_id}", shell.host)


class _Connected:
    """What all operators share: the run, and a connection whose troubles become the right kind of Airflow failure."""

    folder_per_run: bool

    def _run(self, context: Any) -> RunContext:
        try:
            return run_context(context, self.folder_per_run)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None

    def _on_host(self, ssh_conn_id: str, work: Callable[[ParamikoShell], T]) -> T:
        try:
            with connect(ssh_conn_id) as shell:
                return work(shell)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        except Unreachable as error:
            raise AirflowException(f"the host cannot be reached: {error}. The next try goes on from here") from None


class LaunchOperator(_Connected, BaseOperator):
    """Starts a step as a detached job and ends; sensors watch it. XCom: the job's coordinates."""

    def __init__(self, *, step: str, folder_per_run: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.folder_per_run = folder_per_run

    def execute(self, context: Any) -> dict[str, str]:
        run = self._run(context)
        job = run.job(self.step, self.task_id, context["ti"].map_index)
        state = self._on_host(run.ssh_conn_id, lambda shell: launch(shell, run, job))
        _log_launch(self.log, job, state)
        return job.to_dict()


class JobSensor(_Connected, BaseSensorOperator):
    """Watches the job of a step that the task `launched_by` launched, until it ends or reaches `until_phase`.

    A second try, or a clear, starts a dead job again first. XCom: the step's result, and `progress` while it runs.
    """

    launches = False

    def __init__(
        self,
        *,
        step: str,
        launched_by: str | None = None,
        until_phase: str | None = None,
        folder_per_run: bool = True,
        poll_seconds: float = POLL_SECONDS,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=max(poll_seconds, 10.0), mode="reschedule", **kwargs)
        self.step = step
        self.launched_by = launched_by or self.task_id
        self.until_phase = until_phase
        self.folder_per_run = folder_per_run
        self.poll_seconds = poll_seconds
        self.deferrable = conf.getboolean("eagle3", "deferrable", fallback=True) if deferrable is None else deferrable

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        run = self._run(context)
        job = self._start(run, context)
        ti = context["ti"]
        key = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
        self.defer(
            trigger=JobTrigger(
                job.to_dict(), run.clear_number, self.until_phase, self.poll_seconds, UNREACHABLE_SECONDS, key
            ),
            method_name="execute_complete",
        )

    def _job(self, run: RunContext, context: Any) -> RemoteJob:
        return run.job(self.step, self.launched_by, context["ti"].map_index)

    def _start(self, run: RunContext, context: Any) -> RemoteJob:
        """Make sure that there is a job to watch."""
        job = self._job(run, context)
        if self.launches:
            state = self._on_host(run.ssh_conn_id, lambda shell: launch(shell, run, job))
            _log_launch(self.log, job, state)
        elif context["ti"].try_number > 1 or run.clear_number > 0:
            self._on_host(run.ssh_conn_id, lambda shell: self._relaunch(shell, job, run.clear_number))
        return job

    def _relaunch(self, shell: ParamikoShell, job: RemoteJob, clear_number: int) -> None:
        output = shell.run(job.relaunch_command(clear_number))
        _log_launch(self.log, job, output.require_json(f"launching {job.job_id} again", shell.host))

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """The trigger's word: return the result, or fail in the right way."""
        verdict = event["verdict"]
        if verdict in (Verdict.FINISHED, Verdict.RUNNING):  # running: the awaited phase began
            self.log.info("%s: %s", self.step, event["result"] or f"{self.until_phase} began")
            return event["result"]
        for line in event.get("tail", []):
            self.log.info("| %s", line)
        failure = AirflowFailException if verdict == Verdict.REFUSED or event.get("config_error") else AirflowException
        raise failure(event["message"])

    def poke(self, context: Any) -> PokeReturnValue:
        """The fallback where no triggerer runs: one look; where it was is kept in the task state store."""
        store, run = context["task_state_store"], self._run(context)
        state = store.get(WATCH_KEY)
        job = self._start(run, context) if state is None else self._job(run, context)
        watch = JobWatch(job, self.until_phase, state)
        try:
            with connect(job.ssh_conn_id) as shell:
                self._look(shell, watch, self.log.info)
                if watch.is_over and watch.needs_whole_log:
                    watch = watch.afresh()
                    self._look(shell, watch, self.log.debug)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        except Unreachable as error:
            self._be_patient(store, watch, error)
            return PokeReturnValue(is_done=False)
        store.delete(UNREACHABLE_KEY)
        if not watch.is_over:
            store.set(WATCH_KEY, watch.as_state())
            return PokeReturnValue(is_done=False)
        store.delete(WATCH_KEY)
        return PokeReturnValue(is_done=True, xcom_value=self.execute_complete(context, watch.outcome()))

    def _be_patient(self, store: Any, watch: JobWatch, error: Unreachable) -> None:
        """An outage is no failure of the job, until it has lasted too long."""
        since = store.get(UNREACHABLE_KEY) or time.time()
        silent_seconds = time.time() - since
        if silent_seconds > UNREACHABLE_SECONDS:
            store.delete(UNREACHABLE_KEY)
            raise AirflowException(f"{error}; silent for {silent_seconds:.0f} s. The job is untouched")
        store.set(UNREACHABLE_KEY, since)
        if watch.has_begun:
            store.set(WATCH_KEY, watch.as_state())
        self.log.warning("unreachable for %.0f s, the job goes on: %s", silent_seconds, error)

    def _look(self, shell: ParamikoShell, watch: JobWatch, tell: Callable[..., None]) -> None:
        while True:
            for line in watch.take(parse_poll(shell.ask(watch.poll_command()))):
                tell("%s", line)
            if watch.is_over or not watch.has_more:
                return


class StepOperator(JobSensor):
    """Launches a step and watches it to its end: one task for one step. XCom: the step's result."""

    launches = True


def _log_launch(log: Any, job: RemoteJob, state: dict[str, Any]) -> None:
    what = "started" if state["launched"] else f"attached to ({state['status']})"
    log.info("%s job %s, attempt %s, on %r: %s/log", what, job.job_id, state["attempt"], job.ssh_conn_id, job.job_dir)
