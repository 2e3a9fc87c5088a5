"""Events: one JSON line each, `{"v": 1, "t": <unix seconds>, "up": <seconds since boot>, "kind": ..., ...}`.

A step appends them to its job folder. `t` is for people; durations come from `up`, which no change of the clock moves.

Kinds: started, expected(last_times, shard_bytes), phase(name), progress(done, total, unit), metric(name, value),
artifact(path), warning(text), finished(result | error).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Self, TypedDict

EVENT_VERSION = 1
JOB_DIR_VARIABLE = "EAGLE3_JOB_DIR"


def _job_dir() -> Path | None:
    """The folder of the job that this process is the payload of."""
    job_dir = os.environ.get(JOB_DIR_VARIABLE)
    return Path(job_dir) if job_dir else None


def job_log_path() -> Path | None:
    """Where this process's output goes; None when it is run by hand."""
    job_dir = _job_dir()
    return job_dir / "log" if job_dir else None


class PhaseTime(TypedDict):
    """Seconds that a phase took, and how many of which unit were done in it (0 and None where nothing is counted)."""

    seconds: float
    done: float
    unit: str | None


class EventWriter:
    """Appends events to `events.jsonl`, or prints them for a person when a step is run by hand without a job folder.

    Each event is one `write` of one line on a file opened for appending, so that a reader never sees half an event
    followed by another writer's.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self._phase: tuple[str, float] | None = None
        self._counted_from: float | None = None
        self._phase_times: dict[str, PhaseTime] = {}

    @classmethod
    def from_environment(cls) -> Self:
        """The writer of the job that this process is the payload of."""
        job_dir = _job_dir()
        return cls(job_dir / "events.jsonl" if job_dir else None)

    def _emit(self, kind: str, **fields: Any) -> None:
        up = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)
        event = {"v": EVENT_VERSION, "t": round(time.time(), 3), "up": up, "kind": kind, **fields}
        if self._file:
            self._file.write(json.dumps(event).encode() + b"\n")
        else:
            print(f"[{kind}]", *(f"{name}={value}" for name, value in fields.items()), file=sys.stderr)

    def started(self, step: str) -> None:
        self._emit("started", step=step)

    def expected(self, last_times: dict[str, "PhaseTime"], shard_bytes: list[int]) -> None:
        """What the step's phases took last time on this host, and the bytes of the target's shards in load order.

        For the reader that computes an ETA: a person who runs a step by hand is not shown it.
        """
        if self._file:
            self._emit("expected", last_times=last_times, shard_bytes=shard_bytes)

    def phase(self, name: str) -> None:
        self.end_phases()
        self._phase, self._counted_from = (name, time.monotonic()), None
        self._emit("phase", name=name)

    def end_phases(self) -> dict[str, "PhaseTime"]:
        """The times of all phases; the current one ends here."""
        if self._phase:
            name, began = self._phase
            self._time_of(name)["seconds"] += round(time.monotonic() - began, 3)
            self._phase = None
        return self._phase_times

    def phase_took(self, name: str, seconds: float, done: float, unit: str) -> None:
        """The time of a phase of an engine, which the step knows only afterwards."""
        self._phase_times[name] = {"seconds": seconds, "done": done, "unit": unit}

    def _time_of(self, phase: str) -> "PhaseTime":
        return self._phase_times.setdefault(phase, {"seconds": 0.0, "done": 0, "unit": None})

    def progress(self, done: int | float, total: int | float | None, unit: str) -> None:
        if self._phase:
            record = self._time_of(self._phase[0])
            before = done if self._counted_from is None else self._counted_from
            record["done"] += done - before
            record["unit"] = unit
            self._counted_from = done
        self._emit("progress", done=done, total=total, unit=unit)

    def metric(self, name: str, value: float | int | str) -> None:
        self._emit("metric", name=name, value=value)

    def artifact(self, path: Path | str) -> None:
        self._emit("artifact", path=str(path))

    def warning(self, text: str) -> None:
        self._emit("warning", text=text)

    def finished(self, result: dict[str, Any] | None = None, error: dict[str, str] | None = None) -> None:
        self._emit("finished", result=result, error=error)


def parse_event(line: bytes) -> dict[str, Any] | None:
    """One event, or None for a line that is not one (cut by a full disk, or of a later version)."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("v") != EVENT_VERSION or "kind" not in event:
        return None
    return event
