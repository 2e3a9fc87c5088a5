"""One line a person reads: `loading weights 42/64 shards (66 %), 23.2 s/shard (18-33), 8.5 min left ±1,
4 % slower than last time`. Control side.

What is unknown is left out.
"""

from typing import NamedTuple

from eagle3.pipeline.eta import Eta, Pace

GIGABYTE = 1e9


class Counts(NamedTuple):
    done: float
    total: float | None
    unit: str


def report_line(
    phase: str,
    phase_seconds: float,
    counts: Counts | None,
    work_bytes: tuple[float, float] | None,
    pace: Pace | None,
    eta: Eta | None,
    against_last_time: float | None,
) -> str:
    """`phase_seconds`: since the phase began; told when there is nothing to count.

    `against_last_time`: how many times as long as last time on this host the phase takes.
    """
    head = phase.replace("_", " ")
    if counts is None:
        return f"{head}, for {_duration(phase_seconds)}" if phase_seconds >= 60 else head
    parts = [f"{head} {_counts(*counts)}"]
    if work_bytes:
        parts.append("{:.0f} of {:.0f} GB".format(*(size / GIGABYTE for size in work_bytes)))
    if pace:
        parts.append(_pace(pace, counts.unit))
    if eta and counts.done != counts.total:
        parts.append(_remaining(eta))
    if against_last_time:
        parts.append(_comparison(against_last_time))
    return ", ".join(parts)


def _counts(done: float, total: float | None, unit: str) -> str:
    if unit == "bytes":
        numbers = f"{done / GIGABYTE:.1f}" + (f"/{total / GIGABYTE:.1f}" if total is not None else "")
        unit = "GB"
    else:
        numbers = f"{done:,.10g}" + (f"/{total:,.10g}" if total is not None else "")
    return f"{numbers} {unit}" + (f" ({100 * done // total:.0f} %)" if total else "")


def _pace(pace: Pace, unit: str) -> str:
    if pace.item_seconds >= 1:
        return f"{_number(pace.item_seconds)} s/{unit.removesuffix('s')} ({_range(pace.fastest, pace.slowest)})"
    scale, unit = (GIGABYTE, "GB") if unit == "bytes" else (1.0, unit)
    rate, slow, fast = (1 / seconds / scale for seconds in (pace.item_seconds, pace.slowest, pace.fastest))
    return f"{_number(rate)} {unit}/s ({_range(slow, fast)})"


def _range(low: float, high: float) -> str:
    return f"{low:,.0f}-{high:,.0f}" if low >= 10 else f"{low:.1f}-{high:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _remaining(eta: Eta) -> str:
    size, name = _time_unit(eta.seconds)
    text = f"{eta.seconds / size:.{0 if size == 1 else 1}f} {name} left"
    if eta.error_seconds is None:
        return text
    error = eta.error_seconds / size
    if error >= 1 or size == 1:
        return f"{text} ±{max(error, 1):.0f}"
    return f"{text} ±{max(error, 0.1):.1f}"


def _comparison(ratio: float) -> str:
    if not 0.5 <= ratio < 2:
        return f"{ratio:.1f} times as long as last time"
    percent = round(100 * (ratio - 1))
    if not percent:
        return "as fast as last time"
    return f"{abs(percent)} % {'slower' if percent > 0 else 'faster'} than last time"


def _duration(seconds: float) -> str:
    size, name = _time_unit(seconds)
    return f"{seconds / size:.{0 if size == 1 else 1}f} {name}"


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 90:
        return 1.0, "s"
    return (60.0, "min") if seconds < 7200 else (3600.0, "h")
