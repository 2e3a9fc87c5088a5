"""A job on a GPU host, as commands: launch, poll, kill. Pure builders and parsers; shell.py runs them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.contract.job import JobState
from eagle3.contract.run_dir import RunDir, WorkDir
from eagle3.gpu_host.shell import Command


@dataclass(frozen=True)
class RemoteJob:
    """Where a job lies. Serialisable: a trigger carries it. The id never depends on the try number."""

    ssh_conn_id: str
    work_dir: str
    host_python: str
    code_sha: str
    run_id: str
    job_id: str
    step: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @property
    def job_dir(self) -> Path:
        return WorkDir(Path(self.work_dir)).job_dir(self.job_id)

    @property
    def run_dir(self) -> RunDir:
        return WorkDir(Path(self.work_dir)).run_dir(self.run_id)

    @property
    def code_dir(self) -> Path:
        return WorkDir(Path(self.work_dir)).code_dir(self.code_sha)

    def _supervisor(self, verb: str, path: Path, *options: str, stdin: bytes = b"") -> Command:
        module = ["env", f"PYTHONPATH={self.code_dir}", self.host_python, "-m", "eagle3.remote.supervisor"]
        return Command([*module, verb, str(path), *options], stdin)

    def launch_command(self, clear_number: int, max_runtime_seconds: float, needs_gpus: bool) -> Command:
        job: dict[str, Any] = {
            "job_id": self.job_id,
            "argv": [self.host_python, "-m", "eagle3.remote", self.step, "--run-dir", str(self.run_dir.root)],
            "env": {"PYTHONPATH": str(self.code_dir)},
            "clear_number": clear_number,
            "max_runtime_seconds": max_runtime_seconds,
        }
        if needs_gpus:
            job["gpu_lock"] = str(self.run_dir.work_dir.gpu_lock_path)
        return self._supervisor("launch", self.job_dir, stdin=json.dumps(job).encode())

    def relaunch_command(self, clear_number: int) -> Command:
        """Start the job again as it was recorded, unless it runs or is done; in any case after a later clear."""
        return self._supervisor("relaunch", self.job_dir, "--clear-number", str(clear_number))

    def put_command(self, path: Path, content: bytes) -> Command:
        return self._supervisor("put", path, stdin=content)

    def poll_command(self, question: bytes) -> Command:
        """`question`: of `Seen.as_question`."""
        return self._supervisor("poll", self.job_dir, "--seen", question.decode())

    def follow_command(self) -> Command:
        """Answers one poll after the other, for as long as the connection lives (see AsyncsshShell.dialogue)."""
        return self._supervisor("follow", self.job_dir)

    def list_command(self) -> Command:
        """The states of all jobs beside this one, as a JSON list."""
        return self._supervisor("list", self.job_dir.parent)

    def kill_command(self, clear_number: int | None) -> Command:
        """End the job; with `clear_number`, only what that clear or an earlier one started: a late kill cannot hit the
        attempt of a newer one."""
        options = [] if clear_number is None else ["--clear-number", str(clear_number)]
        return self._supervisor("kill", self.job_dir, *options)


@dataclass(frozen=True)
class Seen:
    """How far the job's files were read, and which files those were: what the next poll continues from."""

    attempt: int | None = None
    log_offset: int = 0
    log_inode: int | None = None
    event_offset: int = 0

    def as_question(self, look: bool = False) -> bytes:
        """`look`: tell also what the job's processes do, which takes seconds."""
        return json.dumps({**asdict(self), "look": look}).encode()


@dataclass(frozen=True)
class Poll:
    """One answer of the host: the job's state and the bytes that are new since what was seen."""

    state: JobState
    boottime: float  # the host's clock: seconds since it booted
    log: bytes
    log_offset: int  # where `log` begins
    log_size: int
    log_inode: int
    events: bytes
    event_offset: int
    event_size: int
    gpus: dict[str, Any] | None  # the newest of remote/gpu_samples.py
    standstill: dict[str, Any] | None  # of remote/standstill.py, when it was asked for

    @property
    def seen(self) -> Seen:
        return Seen(
            self.state.attempt,
            self.log_offset + len(self.log),
            self.log_inode,
            self.event_offset + len(self.events),
        )

    @property
    def has_more(self) -> bool:
        """The answer was cut: there are bytes on the host that this poll did not bring."""
        return self.log_offset + len(self.log) < self.log_size or self.event_offset + len(self.events) < self.event_size


def parse_poll(answer: bytes) -> Poll:
    line, _, rest = answer.partition(b"\n")
    header = json.loads(line)
    log, events = header["log"], header["events"]
    return Poll(
        JobState.from_report(header["state"]),
        header["boottime"],
        rest[: log["num_bytes"]],
        log["offset"],
        log["size"],
        log["inode"],
        rest[log["num_bytes"] :],
        events["offset"],
        events["size"],
        header["gpus"],
        header["standstill"],
    )
