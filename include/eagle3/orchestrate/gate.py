"""What the DAGs are built from: remote steps as tasks, and the gate around everything that needs the GPUs."""

from datetime import timedelta
from typing import Any, NamedTuple

from airflow.sdk import TaskGroup, task
from airflow.sdk.exceptions import AirflowSkipException

from eagle3.orchestrate.operators import JobSensor, LaunchOperator, StepOperator
from eagle3.pipeline.steps import step_named

# A retry is cheap: it attaches to a job that runs, and a dead one goes on from what is on disk.
DEFAULT_ARGS: dict[str, Any] = {
    "owner": "eagle3",
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}


def remote_step(step: str, task_id: str | None = None, **kwargs: Any) -> StepOperator:
    """One task for one remote step, launched and watched to its end."""
    known = step_named(step)
    return StepOperator(
        task_id=task_id or step, step=step, task_display_name=known.title, retries=known.retries, **kwargs
    )


def launched_step(step: str, **kwargs: Any) -> LaunchOperator:
    """A task that only starts the step's job; `watch` makes its sensors."""
    return LaunchOperator(task_id=step, step=step, retries=step_named(step).retries, **kwargs)


def watch(step: str, task_id: str, until_phase: str | None = None, **kwargs: Any) -> JobSensor:
    """A sensor on the job that the task `step` launched."""
    return JobSensor(
        task_id=task_id,
        step=step,
        launched_by=step,
        until_phase=until_phase,
        retries=step_named(step).retries,
        **kwargs,
    )


def server_gate(setup: StepOperator, restore_task_id: str, **kwargs: Any) -> StepOperator:
    """The teardown that brings the plain server back: work `with` it runs behind `setup`, and whatever happens to that
    work, the server returns. It does not run when `setup` itself fails."""
    setup.as_setup()
    teardown = remote_step("start_server", restore_task_id, **kwargs)
    teardown.as_teardown(setups=setup)
    return teardown


class Extraction(NamedTuple):
    stop_server: StepOperator
    start_server: StepOperator
    verify_hidden_states: StepOperator


def extraction_group(**kwargs: Any) -> Extraction:
    """stop the server → load the target, extract, verify → start the server again."""
    with TaskGroup("extraction", prefix_group_id=False):
        stop_server = remote_step("stop_server", **kwargs)
        start_server = server_gate(stop_server, "start_server", **kwargs)
        with start_server:
            extract_hidden_states = launched_step("extract_hidden_states", **kwargs)
            wait_for_weights = watch("extract_hidden_states", "wait_for_weights", until_phase="generating", **kwargs)
            wait_for_extraction = watch("extract_hidden_states", "wait_for_extraction", **kwargs)
            verify_hidden_states = remote_step("verify_hidden_states", **kwargs)
            extract_hidden_states >> wait_for_weights >> wait_for_extraction >> verify_hidden_states
    return Extraction(stop_server, start_server, verify_hidden_states)


@task
def skip_unless_changed(changes: dict[str, Any]) -> str:
    """Skips the rest of the run, with the reason, when `find_changes` found nothing."""
    if not changes["changed"]:
        raise AirflowSkipException(changes["reason"])
    return changes["reason"]
