"""All that the sensors conclude from a log, for any log file: phase, counts, and why it died. Control side, pure."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eagle3.pipeline import dialects
from eagle3.pipeline.dialects.bar import find_phase
from eagle3.pipeline.failure_rules import HANG_ADVICE, RULES, Reason
from eagle3.pipeline.failures import Evidence
from eagle3.pipeline.phase_hints import HINTS
from eagle3.pipeline.progress import Progress
from eagle3.pipeline.secrets import redact
from eagle3.pipeline.skimmer import Skimmer, Told
from eagle3.pipeline.steps import STALL_SECONDS

ENDED_PHASES = frozenset({"finished", "shutdown"})
SIGNAL_REASONS: dict[int, Reason] = {
    signal.SIGKILL: Reason.OOM_KILLER,
    signal.SIGBUS: Reason.SIGBUS_SHM,
    signal.SIGTERM: Reason.CANCELLED,
    signal.SIGINT: Reason.CANCELLED,
}


@dataclass(frozen=True)
class Process:
    """What is known of the process that wrote the log; None where nothing is.

    `exit_code`: as a shell gives it, or negative for a signal. `quiet_seconds`: since the log's last line.
    """

    is_alive: bool | None = None
    exit_code: int | None = None
    quiet_seconds: float | None = None


def read_log(chunks: Iterable[bytes], process: Process) -> dict[str, Any]:
    """phase, done, total, unit, elapsed_s, rate, eta_s, fatal, failure_kind, decisive_line, hangs, advice, and `line`.

    Counts, times and rate (items a second) are the last bar's, as it was printed; None where unknown. `line` is the
    report line of the sensors.
    """
    evidence, progress = Evidence(), Progress.begin(0.0)
    bar: dict[str, Any] = {}
    hinted: str | None = None
    is_understood = False

    def take(segment: str) -> Told:
        nonlocal bar, hinted, is_understood
        told = evidence.feed(segment)
        if progress.phase == "starting" and hinted is None:
            hinted = find_phase(segment, HINTS)
        events = dialects.read(segment)
        for event in events:
            is_understood = is_understood or event["kind"] == "phase"
            progress.consume(event, 0.0)
            if event["kind"] == "progress":
                bar = event
        if not told and find_phase(segment, HINTS):
            return Told.MORE
        return max(told, Told.COUNTS if events else Told.NOTHING)

    skimmer = Skimmer(take)
    for chunk in chunks:
        skimmer.feed(chunk)
    skimmer.finish()
    phase = progress.phase if is_understood else "unknown"
    if hinted and progress.phase == "starting":
        phase = hinted
    pace = bar.get("item_seconds")
    return {
        "phase": phase,
        "done": bar.get("done"),
        "total": bar.get("total"),
        "unit": bar.get("unit"),
        "elapsed_s": bar.get("elapsed_seconds"),
        "rate": 1 / pace if pace else None,
        "eta_s": bar.get("eta_seconds"),
        **_verdict(evidence, progress, process),
        "line": progress.line(0.0),
    }


def _verdict(evidence: Evidence, progress: Progress, process: Process) -> dict[str, Any]:
    """Text first; then what the process table and the clock say where the text is silent."""
    failure = evidence.find_failure()
    if failure:
        hangs = process.is_alive if process.is_alive is not None else failure.hangs
        return _failed(failure.reason, redact(failure.decisive_line), failure.advice, hangs)
    if process.exit_code:
        number = -process.exit_code if process.exit_code < 0 else process.exit_code - 128
        reason = SIGNAL_REASONS.get(number, Reason.WORKER_DIED if number > 0 else None)
        advice = next((rule.advice for rule in RULES if rule.reason is reason), None)
        return _failed(
            reason, None, advice or "the log names no cause: read its end, and `dmesg -T` on the host", False
        )
    has_ended = process.is_alive is False or process.exit_code == 0
    if has_ended and progress.phase not in ENDED_PHASES:
        advice = (
            f"the process is gone, but the log does not say that {progress.phase} was finished: look at its results"
        )
        return _failed(None, None, advice, False)
    if process.quiet_seconds is not None and not has_ended:
        stall = progress.stall(process.quiet_seconds, STALL_SECONDS)
        if stall:
            return _failed("hang", None, HANG_ADVICE, True)
    return {"fatal": False, "failure_kind": None, "decisive_line": None, "hangs": False, "advice": None}


def _failed(reason: str | None, decisive_line: str | None, advice: str, hangs: bool) -> dict[str, Any]:
    kind = None if reason is None else str(reason)
    return {"fatal": True, "failure_kind": kind, "decisive_line": decisive_line, "hangs": hangs, "advice": advice}
