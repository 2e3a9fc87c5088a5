"""Keeps a task log readable: a burst of lines, then one a minute. Control side, pure."""

from dataclasses import dataclass

BURST_LINES = 20.0  # a small run's phases follow each other within seconds
LINES_PER_SECOND = 1 / 60


@dataclass
class Ration:
    """How many lines may be told now. Plain data, times in seconds of one clock."""

    lines: float = BURST_LINES
    at: float = 0.0
    num_held_back: int = 0

    def admit(self, lines: list[str], now: float) -> list[str]:
        """Those that may be told; the first one after some were held back says how many."""
        self.lines = min(BURST_LINES, self.lines + max(0.0, now - self.at) * LINES_PER_SECOND)
        self.at = now
        told = lines[: int(self.lines)]
        self.lines -= len(told)
        if told and self.num_held_back:
            told[0] += f" ({self.num_held_back} lines before it were held back)"
            self.num_held_back = 0
        self.num_held_back += len(lines) - len(told)
        return told
