"""Events: one JSON line each, `{"v": 1, "t": <unix seconds>, "up": <seconds since boot>, "kind": ..., ...}`.

A step appends them to its job folder. `t` is for people; durations come from `up`, which no change of the clock moves.

Kinds: started, phase(name), progress(done, total, unit), metric(name, value), artifact(path), warning(text),
finished(result | error).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Self

EVENT_VERSION = 1
JOB_DIR_VARIABLE = "EAGLE3_JOB_DIR"


class EventWriter:
    """Appends events to `events.jsonl`, or prints them for a person when a step is run by hand without a job folder.

    Each event is one `write` of one line on a file opened for appending, so that a reader never sees half an event
    followed by another writer's.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self._phase: tuple[str, float] | None = None
        self._phase_seconds: dict[str, float] = {}

    @classmethod
    def from_environment(cls) -> Self:
        """The writer of the job that this process is the payload of."""
        job_dir = os.environ.get(JOB_DIR_VARIABLE)
        return cls(Path(job_dir) / "events.jsonl" if job_dir else None)

    def _emit(self, kind: str, **fields: Any) -> None:
        up = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)
        event = {"v": EVENT_VERSION, "t": round(time.time(), 3), "up": up, "kind": kind, **fields}
        if self._file:
            self._file.write(json.dumps(event).encode() + b"\n")
        else:
            print(f"[{kind}]", *(f"{name}={value}" for name, value in fields.items()), file=sys.stderr)

    def started(self, step: str) -> None:
        self._emit("started", step=step)

    def phase(self, name: str) -> None:
        self.end_phases()
        self._phase = name, time.monotonic()
        self._emit("phase", name=name)

    def end_phases(self) -> dict[str, float]:
        """The seconds spent in each phase, the current one ends here."""
        if self._phase:
            name, began = self._phase
            self._phase_seconds[name] = round(self._phase_seconds.get(name, 0.0) + time.monotonic() - began, 3)
            self._phase = None
        return self._phase_seconds

    def progress(self, done: int | float, total: int | float | None, unit: str) -> None:
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
