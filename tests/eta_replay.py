"""How good is the ETA? `make eta` replays loads as logs and prints the table of the README.

Each load is written as vLLM writes it, bar by bar with tqdm's smoothing, and read by the sensors' code. At 10, 25, 50
and 75 % of the shards, three estimates of the remaining time meet the truth: ours, the one that the bar prints, and the
naive mean (elapsed / done). The error is their distance from the truth, in percent of it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from eagle3.pipeline import dialects
from eagle3.pipeline.log_lines import split_log
from eagle3.pipeline.progress import Progress

POINTS = (10, 25, 50, 75)
GB = 1_000_000_000


@dataclass(frozen=True)
class Load:
    """Seconds that each shard took, and each shard's bytes where the sensors know them."""

    name: str
    seconds: list[float]
    item_bytes: list[int] | None = None
    last_seconds: float | None = None  # of the load before it, where the host has one in its history


def loads() -> list[Load]:
    chance = random.Random(7)
    uniform = [chance.uniform(20, 27) for _ in range(64)]
    sizes = [chance.randint(2 * GB, 14 * GB) for _ in range(64)]
    by_size = [size / GB * 2.7 * chance.uniform(0.9, 1.1) for size in sizes]
    slow_start = [chance.uniform(55, 75) if n < 5 else chance.uniform(20, 27) for n in range(64)]
    degrades = [chance.uniform(20, 27) * (1 + n / 64) for n in range(64)]
    pause = [*uniform[:20], uniform[20] + 240, *uniform[21:]]
    # 19 shards at 7.5 min, 42 at 16:21, 43 at 16:45, 44 at 17:11, 45 at 17:43; the rest at the pace of its last three
    reference = [450 / 19] * 19 + [(981 - 450) / 23] * 23 + [24, 26, 32] + [82 / 3] * 19
    return [
        Load("uniform", uniform),
        Load("shards of 2-14 GB", by_size, sizes),
        Load("slow start", slow_start),
        Load("a disk that degrades", degrades),
        Load("a pause of four minutes", pause),
        Load("second weight set, 16 shards", [chance.uniform(8, 12) for _ in range(16)]),
        Load("reference", reference),
        Load("slow start, as the last load", slow_start, last_seconds=1.1 * sum(slow_start)),
        Load("a disk that degrades, as for the last load", degrades, last_seconds=0.9 * sum(degrades)),
        Load("from memory, the last load from disk", [second / 10 for second in uniform], last_seconds=sum(uniform)),
    ]


def without_history() -> list[Load]:
    return [load for load in loads() if not load.last_seconds]


def with_history() -> list[Load]:
    return [load for load in loads() if load.last_seconds]


class Smoothed:
    """tqdm's exponential moving average, corrected for its start."""

    def __init__(self, smoothing: float = 0.3) -> None:
        self._smoothing, self._last, self._calls = smoothing, 0.0, 0

    def __call__(self, value: float) -> float:
        self._last = self._smoothing * value + (1 - self._smoothing) * self._last
        self._calls += 1
        return self._last / (1 - (1 - self._smoothing) ** self._calls)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def replay(load: Load) -> Iterator[tuple[int, float, float, float, float]]:
    """At each shard: done, ours, the bar's, the naive mean, the truth; all in seconds that remain."""
    total, elapsed, smoothed = len(load.seconds), 0.0, Smoothed()
    progress = Progress.begin(0.0)
    last = {"loading_weights": {"seconds": load.last_seconds, "done": total, "unit": "shards"}}
    known = {"shard_bytes": load.item_bytes or [], "last_times": last if load.last_seconds else {}}
    progress.consume({"kind": "expected", **known}, 0.0)
    other = "".join(bar(n, 30, 10.0 * n, 10.0) for n in range(31)) if load.name.startswith("second") else ""
    read(progress, other, 0.0)  # the bar of a first weight set must not count
    read(progress, bar(0, total, 0, None), 0.0)
    for done, seconds in enumerate(load.seconds, start=1):
        elapsed += seconds
        item_seconds = smoothed(seconds)
        read(progress, bar(done, total, elapsed, item_seconds), elapsed)
        eta = progress.eta(elapsed)
        remaining = sum(load.seconds[done:])
        if eta and remaining:
            yield done, eta.seconds, (total - done) * item_seconds, elapsed / done * (total - done), remaining


def bar(done: int, total: int, elapsed: float, item_seconds: float | None) -> str:
    head = f"\rLoading safetensors checkpoint shards: {100 * done / total:3.0f}% Completed | {done}/{total} "
    if item_seconds is None:
        return f"{head}[00:00<?, ?it/s]\n"
    return f"{head}[{clock(elapsed)}<{clock((total - done) * item_seconds)}, {item_seconds:5.2f}s/it]\n"


def read(progress: Progress, text: str, now: float) -> None:
    for segment in split_log(text.encode()):
        for event in dialects.read(segment):
            progress.consume(event, now)


def errors(load: Load) -> dict[int, tuple[float, ...]]:
    """At each point: the errors of the three, in percent."""
    found = {}
    rows = {done: estimates for done, *estimates in replay(load)}
    for point in POINTS:
        done = round(len(load.seconds) * point / 100)
        *estimates, truth = rows[done]
        found[point] = tuple(100 * abs(estimate - truth) / truth for estimate in estimates)
    return found


def table() -> str:
    lines = ["| load | " + " | ".join(f"at {point} %" for point in POINTS) + " |", "|---|" + "---|" * len(POINTS)]
    for load in loads():
        cells = [" / ".join(f"{error:.0f}" for error in errors(load)[point]) for point in POINTS]
        lines.append(f"| {load.name} | " + " | ".join(cells) + " |")
    for title, loads_of_it in (("mean", without_history()), ("mean with a last load", with_history())):
        means = [
            " / ".join(f"{mean(errors(load)[point][who] for load in loads_of_it):.1f}" for who in range(3))
            for point in POINTS
        ]
        lines.append(f"| **{title}** | " + " | ".join(means) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
