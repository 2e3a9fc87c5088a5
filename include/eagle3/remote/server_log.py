"""Reads the vLLM server's log on the GPU host: phase, shards loaded, does it move, the line that explains a death.

Pure and stdlib only. Formats: vLLM 0.8 to 0.33; a load bar is one line `...shards:  66% Completed | 42/64 [...]`.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROCESS_PREFIX = re.compile(r"^(?:\(\S+(?: rank=\d+)? pid=\d+(?:, ip=[^)]*)?\)\s?)+")
_RECORD_HEADER = re.compile(r"^(?:INFO|DEBUG|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|\S+\]) ?")
_LOAD_TOOK = re.compile(r"Loading (?:model )?weights took ([\d.]+) seconds")
_SHARDS = re.compile(r"(?:checkpoint shards|loading shards)[^:|]*:\s+\d+% Completed \| (\d+)/(\d+) ")

# Text that opens a phase, and how long its log may stand still. Loaders without a bar are silent for a whole load,
# and weight repacking or kernel tuning prints nothing for many minutes.
PHASE_OPENINGS = (
    ("loading_weights", re.compile(r"Starting to load model|Loading model from scratch|checkpoint shards:")),
    ("post_load", re.compile(r"Loading (?:model )?weights took")),
)
STALL_SECONDS = {"engine_init": 1200.0, "loading_weights": 3600.0, "post_load": 2700.0}

_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)")
_FATAL = re.compile(
    r"CUDA out of memory|No space left on device|[Aa]ddress already in use|EADDRINUSE|illegal memory access"
    r"|larger than the maximum number of tokens|died unexpectedly|: error: |^cannot start "
)
_HARMLESS = re.compile(r"NCCL (?:WARN|INFO)|retrying|Skipping|Ignoring")
_GENERIC = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed|EngineDeadError"
    r"|See (?:root cause|stack trace)|ChildFailedError|died unexpectedly|failed to start|^\w+$"
)


def clean_lines(text: str) -> list[str]:
    """Segments (both CR and LF end one) without colours and process prefixes, empty ones left out."""
    segments = re.split(r"[\r\n]+", _ANSI.sub("", text))
    return [line for line in (_PROCESS_PREFIX.sub("", segment).rstrip() for segment in segments) if line.strip()]


def decisive_line(text: str) -> str | None:
    """The first line that names a cause. An engine's death is repeated by every process above it, in general words;
    such a line is taken only when there is no better one."""
    lines = [_RECORD_HEADER.sub("", line).strip() for line in clean_lines(text)]
    generic = None
    for number, line in enumerate(lines):
        if not (_EXCEPTION.search(line) or _FATAL.search(line)) or _HARMLESS.search(line):
            continue
        if _GENERIC.search(line):
            generic = generic or line
            continue
        says_nothing_yet = re.search(r"validation errors? for \w+$", line)  # pydantic says what is wrong below
        return f"{line} {lines[number + 1]}" if says_nothing_yet and number + 1 < len(lines) else line
    return generic


def last_lines(text: str, count: int) -> list[str]:
    return clean_lines(text)[-count:]


def load_seconds(text: str) -> float | None:
    """What the engine says that the target's weights took to load: the slowest rank's, before any draft head's."""
    seconds = [float(match[1]) for match in _LOAD_TOOK.finditer(text.partition("Loading drafter model")[0])]
    return max(seconds, default=None)


@dataclass(frozen=True)
class LoadState:
    """`shards` is (loaded, all) of the bar printed last; a draft head's own bar follows the target's."""

    phase: str
    shards: tuple[int, int] | None


class LoadLog:
    """Follows one log file from its start. `state` says where the load is."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = LoadState("engine_init", None)
        self._path = path
        self._clock = clock
        self._offset = 0
        self._rest = b""
        self._seen: set[str] = set()
        self._changed_at = clock()
        self._seconds_per_shard = 0.0
        self._shard_at = self._changed_at

    def read(self) -> list[LoadState]:
        """Take in what was written since the last call; returns every new state in between, in order."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        complete, newline, self._rest = (self._rest + new).rpartition(b"\n")
        states = []
        for line in clean_lines((complete + newline).decode(errors="replace")):
            state = self._state_after(line)
            # The same words with other numbers (a heartbeat, "waited 60 seconds") are no progress; a bar is.
            words = re.sub(r"\d+", "#", line)
            if state != self.state or words not in self._seen:
                self._seen.add(words)
                self._changed_at = self._clock()
            if state != self.state:
                self.state = state
                states.append(state)
        return states

    def _state_after(self, line: str) -> LoadState:
        phase, shards = self.state.phase, self.state.shards
        for opened, opening in PHASE_OPENINGS:
            if opening.search(line):
                phase = opened
        if match := _SHARDS.search(line):
            shards = int(match[1]), int(match[2])
            if shards != self.state.shards:
                now = self._clock()
                self._seconds_per_shard, self._shard_at = now - self._shard_at, now
        return LoadState(phase, shards)

    @property
    def stalled_seconds(self) -> float | None:
        """Seconds since the last change when that is longer than this phase may take, else None."""
        limit = STALL_SECONDS[self.state.phase]
        if self.state.phase == "loading_weights" and self.state.shards and self._seconds_per_shard:
            limit = max(900.0, 10 * self._seconds_per_shard)
        age = self._clock() - self._changed_at
        return age if age > limit else None
