"""A job as the watching side sees it: its state on the host, and the verdict."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What a poll says of a job. The terminal ones are in TERMINAL."""

    WAITING = "waiting"  # for the host's GPUs
    RUNNING = "running"
    STALLED = "stalled"
    UNREACHABLE = "unreachable"  # the host, not the job: the job goes on
    REFUSED = "refused"  # the host does not let us in; the job goes on
    FINISHED = "finished"
    FAILED = "failed"
    VANISHED = "vanished"  # gone without an exit file


TERMINAL = frozenset({Verdict.FINISHED, Verdict.FAILED, Verdict.VANISHED})

_VERDICT_OF_STATUS = {
    "starting": Verdict.RUNNING,
    "waiting": Verdict.WAITING,
    "running": Verdict.RUNNING,
    "vanished": Verdict.VANISHED,
    "none": Verdict.VANISHED,
}


@dataclass(frozen=True)
class JobState:
    """The state of a job as the host's supervisor reports it (`supervisor.read_state`)."""

    status: str
    attempt: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    seconds: float | None = None
    waiting_for: str | None = None

    @classmethod
    def from_report(cls, report: dict[str, Any]) -> "JobState":
        known: dict[str, Any] = {name: report.get(name) for name in cls.__dataclass_fields__}
        return cls(**known)

    @property
    def verdict(self) -> Verdict:
        if self.status == "exited":
            return Verdict.FINISHED if self.exit_code == 0 else Verdict.FAILED
        return _VERDICT_OF_STATUS[self.status]

    @property
    def ending(self) -> str:
        """How the job ended, for a person."""
        if self.status == "vanished":
            return f"vanished ({self.reason})"
        if self.status == "none":
            return "has no job folder"
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        return f"{how} ({self.reason})" if self.reason else how
