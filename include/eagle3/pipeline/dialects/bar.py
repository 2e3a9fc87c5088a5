"""tqdm bars and marks of phases: the shared grammar of the dialects. Control side.

Formats (tqdm 4.67; vLLM's `_BAR_FORMAT` puts `Completed |` where tqdm draws its blocks):
`desc:  66% Completed | 42/64 [16:21<08:30, 23.21s/it]`
`desc:  38%|███▊      | 75/197 [00:00<00:01, 38.0it/s, postfix]`
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Phases = Sequence[tuple[str, re.Pattern[str]]]

_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?: Completed \||\|[^|]*\|)\s*(?P<done>[\d.]+[kMGTP]?)/(?P<total>[\d.]+[kMGTP]?)"
    r" \[(?P<elapsed>[\d:]+)<(?P<eta>[\d:]+|\?),\s*(?P<rate>[\d.]+|\?)(?P<scale>[kMGTP]?)(?P<per>s/\w+|\w+/s)"
)
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@dataclass(frozen=True)
class Bar:
    """One row of a dialect: the bar whose description is `description`, what it counts, and the phase it belongs to.

    `phase` is None for a bar that does not tell its phase; `behind` must be found in the text behind the rate.
    """

    description: str
    unit: str
    phase: str | None
    behind: str = ""


UNNAMED = r"^"


def read_bar(segment: str, bars: Sequence[Bar]) -> list[Event]:
    """Phase and progress of the bar in `segment`, or [] when there is none, or one that is not in `bars`.

    The progress has also `elapsed_seconds`, `eta_seconds` and `item_seconds` as the bar printed them (None for `?`).
    A record of another process may be glued before or after the bar.
    """
    match = _BAR.search(segment)
    if not match:
        return []
    before = segment[: match.start()]
    for bar in bars:
        if re.search(rf"{bar.description}:?\s*$", before) and re.search(bar.behind, segment[match.end() :]):
            phase = [{"kind": "phase", "name": bar.phase}] if bar.phase else []
            return [*phase, {"kind": "progress", "unit": bar.unit, **_numbers(match)}]
    return []


def find_phase(segment: str, phases: Phases) -> str | None:
    """The first phase whose pattern is found anywhere in `segment`."""
    return next((phase for phase, pattern in phases if pattern.search(segment)), None)


def read_phase(segment: str, phases: Phases) -> list[Event]:
    """`find_phase` as an event, or []."""
    phase = find_phase(segment, phases)
    return [{"kind": "phase", "name": phase}] if phase else []


def _numbers(match: re.Match[str]) -> dict[str, Any]:
    base = 1024 if match["per"] == "B/s" else 1000
    rate = None if match["rate"] == "?" else float(match["rate"]) * base ** _POWERS[match["scale"]]
    item_seconds = rate if match["per"].startswith("s/") else (1 / rate if rate else None)
    return {
        "done": _count(match["done"], base),
        "total": _count(match["total"], base),
        "elapsed_seconds": _seconds(match["elapsed"]),
        "eta_seconds": None if match["eta"] == "?" else _seconds(match["eta"]),
        "item_seconds": item_seconds,
    }


def _count(text: str, base: int) -> int:
    number = text.rstrip("kMGTP")
    return round(float(number) * base ** _POWERS[text[len(number) :]])


def _seconds(interval: str) -> int:
    """`MM:SS` or `H:MM:SS`."""
    seconds = 0
    for part in interval.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
