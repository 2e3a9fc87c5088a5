"""The jobs of a GPU host for a person at a terminal (`eagle3 job ...`), through the Airflow connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.gpu_host.code_bundle import bring_code, code_bundle
from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.gpu_host.shell import Command, ParamikoShell, Unreachable
from eagle3.orchestrate.hosts import connect, host_settings
from eagle3.pipeline.secrets import redact


class HostJobs:
    """The jobs below one host's work directory."""

    def __init__(self, shell: ParamikoShell, ssh_conn_id: str, work_dir: str, host_python: str) -> None:
        self._shell = shell
        self._host = (ssh_conn_id, work_dir, host_python)
        bring_code(shell, self._job("any").code_dir, host_python)

    def _job(self, job_id: str) -> RemoteJob:
        return RemoteJob(*self._host, code_sha=code_bundle().sha, run_id="", job_id=job_id, step="")

    def _ask(self, command: Command, what: str) -> Any:
        return self._shell.run(command).require_json(what, self._shell.host)

    def list(self) -> list[dict[str, Any]]:
        """The state of every job, the newest first."""
        states = self._ask(self._job("any").list_command(), "listing the jobs")
        return sorted(states, key=lambda state: state.get("started_at", 0), reverse=True)

    def show(self, job_id: str) -> dict[str, Any]:
        """Raises ConfigError naming the known jobs."""
        known = {state["job_id"]: state for state in self.list()}
        if job_id not in known:
            raise ConfigError(
                f"there is no job {job_id!r} on {self._shell.host}; known are: {', '.join(known) or 'none'}"
            )
        return known[job_id]

    def tail(self, job_id: str, num_bytes: int) -> str:
        """The end of the job's log."""
        self.show(job_id)
        log = self._job(job_id).job_dir / "log"
        output = self._shell.run(Command(["tail", "-c", str(num_bytes), str(log)]))
        return redact(output.require_success("reading the log", self._shell.host).decode(errors="replace"))

    def kill(self, job_id: str) -> dict[str, Any]:
        self.show(job_id)
        return self._ask(self._job(job_id).kill_command(None), "killing the job")


@contextmanager
def host_jobs(ssh_conn_id: str) -> Iterator[HostJobs]:
    """Raises ConfigError when the host refuses us, cannot be reached, or its connection lacks its folders."""
    settings = host_settings(ssh_conn_id)
    missing = [name for name, value in settings.items() if not value]
    if missing:
        raise ConfigError(f"the extra of connection {ssh_conn_id!r} lacks {', '.join(missing)}")
    try:
        with connect(ssh_conn_id) as shell:
            yield HostJobs(shell, ssh_conn_id, settings["work_dir"], settings["host_python"])
    except Unreachable as error:
        raise ConfigError(f"the host cannot be reached: {error}") from error
