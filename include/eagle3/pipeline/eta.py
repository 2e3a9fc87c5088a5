"""Pace and remaining time from observations of work done. Control side; the clock is the caller's.

As tqdm and rich do, work and time are smoothed apart. The warm-up (first interval: cold files, compilation) is left
out, and a pause (an interval far above the recent ones) counts for as much as a slow item may: it will not come again
for every item. A disk that stays slow soon is the recent pace. Unknown is None.
"""

import math
import statistics
from dataclasses import dataclass, field

MIN_INTERVAL_SECONDS = 2.0
MIN_MEMORY_SECONDS = 60.0
MEMORY_SHARE = 0.2
NUM_RECENT = 20
PAUSE_FACTOR = 3.0  # times the median pace of the recent intervals
MIN_FOR_PAUSE = 5
PRIOR_SHARE = 0.1  # of the whole work: what the last time's pace weighs beside a like one of this time


@dataclass(frozen=True)
class Pace:
    """Smoothed seconds per item, and the fastest and slowest of the recent intervals."""

    item_seconds: float
    fastest: float
    slowest: float


@dataclass(frozen=True)
class Eta:
    """Remaining time, with one standard deviation (None until two intervals are known)."""

    seconds: float
    error_seconds: float | None


@dataclass(frozen=True)
class Prior:
    """What all the work of a phase (its total, in the meter's unit) took on this host the last time."""

    work: float
    seconds: float


@dataclass
class PaceMeter:
    """Observations in, pace and ETA out. All fields are plain data: `asdict` and `PaceMeter(**state)` carry it on.

    `done` counts items; `work` is what they weigh (bytes of shards), or again `done` when all weigh the same.
    Old intervals fade over MEMORY_SHARE of the time observed, at least MIN_MEMORY_SECONDS.
    """

    first: list[float] = field(default_factory=list)  # done, work, at
    last: list[float] = field(default_factory=list)  # the same
    warmed_up: bool = False
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # items, work, seconds: fading
    recent: list[list[float]] = field(default_factory=list)  # items, work, seconds

    def observe(self, done: float, work: float, at: float) -> None:
        """`done` items and `work` were complete at second `at`. Both must not fall: a new bar needs a new meter."""
        if not self.last:
            self.first = self.last = [done, work, at]
            return
        items, weight, seconds = done - self.last[0], work - self.last[1], at - self.last[2]
        if items <= 0 or seconds < MIN_INTERVAL_SECONDS:
            return
        self.last = [done, work, at]
        if not self.warmed_up:
            self.warmed_up = True
            return
        fade = math.exp(-seconds / max(MIN_MEMORY_SECONDS, MEMORY_SHARE * (at - self.first[2])))
        counted = [items, weight, min(seconds, self._longest_seconds(weight))]
        self.sums = [old * fade + new for old, new in zip(self.sums, counted, strict=True)]
        self.recent = [*self.recent, [items, weight, seconds]][-NUM_RECENT:]

    def _longest_seconds(self, weight: float) -> float:
        """What `weight` can take without a pause."""
        if len(self.recent) < MIN_FOR_PAUSE:
            return math.inf
        return PAUSE_FACTOR * weight * statistics.median(seconds / weight for _, weight, seconds in self.recent)

    @property
    def pace(self) -> Pace | None:
        if not self.recent:
            return None
        paces = [seconds / items for items, _, seconds in self.recent]
        return Pace(self.sums[2] / self.sums[0], min(paces), max(paces))

    @property
    def gap_seconds(self) -> float | None:
        """Mean time between two changes."""
        return sum(interval[2] for interval in self.recent) / len(self.recent) if self.recent else None

    def eta(self, remaining_work: float, prior: Prior | None = None) -> Eta | None:
        """Time for `remaining_work`. Error: intervals are taken as sums of independent items, which gives the variance
        per unit of work s²; the rest R and the mean pace are both uncertain: s² R (1 + R / W), W the unfaded work."""
        if not self.recent or not self.sums[1]:
            return Eta(remaining_work * prior.seconds / prior.work, None) if prior else None
        counted_work, counted_seconds = self.sums[1], self.sums[2]
        if prior:
            # last time's says less the more the two differ (files in memory then, a cold disk now), and less and less
            ratio = counted_seconds / counted_work / (prior.seconds / prior.work)
            share = PRIOR_SHARE * math.exp(-2 * math.log(ratio) ** 2) * (remaining_work / prior.work) ** 4
            counted_work += share * prior.work
            counted_seconds += share * prior.seconds
        seconds = remaining_work * counted_seconds / counted_work
        if len(self.recent) < 2:
            return Eta(seconds, None)
        work = sum(weight for _, weight, _ in self.recent)
        mean = sum(interval[2] for interval in self.recent) / work
        variance = sum(weight * (time / weight - mean) ** 2 for _, weight, time in self.recent) / (len(self.recent) - 1)
        return Eta(seconds, math.sqrt(variance * remaining_work * (1 + remaining_work / counted_work)))

    def against(self, prior: Prior, remaining: Eta) -> float | None:
        """How many times as long as the prior says all of it takes, from the first observation to the end."""
        if not self.recent:
            return None
        elapsed, work = self.last[2] - self.first[2], self.last[1] - self.first[1]
        remaining_work = prior.work - self.last[1]
        return (elapsed + remaining.seconds) / (prior.seconds * (work + remaining_work) / prior.work)
