"""Where a watched job is: its events in, a report line, a snapshot and a stall verdict out. Control side, no clock of
its own: every call gets `now`, in seconds since the host booted, and events carry the same clock as `up`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from eagle3.pipeline.eta import Eta, Pace, PaceMeter, Prior
from eagle3.pipeline.report_line import Counts, report_line

STALL_PACE_FACTOR = 10.0
REPORT_SECONDS = 60.0
QUIET_SECONDS = 600.0
MILESTONE_PERCENT = 10
SLOW_ITEM_SECONDS = 3.0  # each such item is news

# What a step that waits for an engine says of itself; only then may the engine's own text be more precise.
WAITING_PHASES = frozenset({"starting", "engine_init", "loading_weights", "post_load", "serving"})


class Stall(NamedTuple):
    phase: str
    age_seconds: float
    limit_seconds: float


@dataclass
class Progress:
    """The state of one job. All fields are plain data: `as_state` and `from_state` carry it to another process.

    The step's own word outranks a dialect's: while the step counts for itself, or is in a phase of its own such as
    training, what an engine prints is not asked. Of one poll, consume the log's events before the step's own.
    """

    phase_at: float
    changed_at: float
    item_bytes: list[int] = field(default_factory=list)
    last_times: dict[str, Any] = field(default_factory=dict)  # PhaseTime by phase
    phase: str = "starting"
    done: float | None = None
    total: float | None = None
    unit: str | None = None
    step_decides: bool = False
    printed_pace: float | None = None
    printed_eta: float | None = None
    meter: PaceMeter = field(default_factory=PaceMeter)
    metered: list[Any] = field(default_factory=list)  # phase, total, unit, done of the last observation
    reported_phase: str | None = None
    reported_at: float = 0.0
    reported_done: float | None = None

    @classmethod
    def begin(cls, now: float) -> Self:
        return cls(phase_at=now, changed_at=now)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        return cls(**{**state, "meter": PaceMeter(**state["meter"])})

    def as_state(self) -> dict[str, Any]:
        return asdict(self)

    def consume(self, event: Mapping[str, Any], now: float) -> None:
        """Take in an event of the step or of a dialect; kinds without phase or progress change nothing."""
        kind, of_step = event["kind"], "dialect" not in event
        if kind == "started":
            self.step_decides = False
            self._enter("starting", now)
        elif kind == "expected":
            self.item_bytes, self.last_times = event["shard_bytes"], event["last_times"]
            self.meter, self.metered = PaceMeter(), []  # what was weighed by other sizes
        elif kind == "finished":
            self.step_decides = True
            self._enter("failed" if event.get("error") else "finished", now)
        elif kind == "phase" and of_step:
            self.step_decides = event["name"] not in WAITING_PHASES
            self._enter(event["name"], now)
        elif kind == "phase" and not self.step_decides and self._may_enter(event["name"]):
            self._enter(event["name"], now)
        elif kind == "progress" and (of_step or not self.step_decides):
            self.step_decides = of_step
            self._count(event, now)

    def _may_enter(self, name: str) -> bool:
        """Lines of initialisation appear again while weights load; an engine does not go back to it."""
        return name != "engine_init" or self.phase == "starting"

    def _enter(self, name: str, now: float) -> None:
        if name == self.phase:
            return
        self.phase, self.phase_at, self.changed_at = name, now, now
        self.done = self.total = self.unit = self.printed_pace = self.printed_eta = None

    def _count(self, event: Mapping[str, Any], now: float) -> None:
        done, total, unit = event["done"], event["total"], event["unit"]
        # Training goes on after a validation with the pace it had; another bar, or one from 0, is measured afresh.
        if self.metered[:3] != [self.phase, total, unit] or done < self.metered[3]:
            self.meter = PaceMeter()
        self.metered = [self.phase, total, unit, done]
        if (done, total, unit) != (self.done, self.total, self.unit):
            self.changed_at = now
        self.done, self.total, self.unit = done, total, unit
        self.printed_pace, self.printed_eta = event.get("item_seconds"), event.get("eta_seconds")
        # A bar's own clock is better than the time at which a poll happened to read it.
        at = event.get("elapsed_seconds", event.get("up", now))
        self.meter.observe(done, self._work(done), at)

    def _work(self, done: float) -> float:
        return float(sum(self.item_bytes[: int(done)])) if self._weighed else done

    @property
    def _weighed(self) -> bool:
        return self.phase == "loading_weights" and bool(self.item_bytes) and self.total == len(self.item_bytes)

    @property
    def work_bytes(self) -> tuple[float, float] | None:
        """Loaded and total bytes, where the sizes of the shards are known."""
        return (self._work(self.done), float(sum(self.item_bytes))) if self._weighed and self.done is not None else None

    @property
    def pace(self) -> Pace | None:
        return None if self.done is None else self.meter.pace

    def eta(self, now: float) -> Eta | None:
        """Remaining time of this phase; the bar's own guess, without an error, until there is a measured pace."""
        if self.total is None or self.done is None:
            return None
        eta = self.meter.eta(self._work(self.total) - self._work(self.done), self._prior)
        if eta is None and self.printed_eta is not None:
            eta = Eta(self.printed_eta, None)
        if eta is None:
            return None
        waited = min(now - self.changed_at, self._gap_seconds or 0.0)  # at most one item can be nearly complete
        return Eta(max(0.0, eta.seconds - waited), eta.error_seconds)

    def news_due_seconds(self, now: float) -> float | None:
        """Time until the next item of a slow job, or until the phase's end; negative when overdue."""
        gap, eta = self._gap_seconds, self.eta(now)
        due = [eta.seconds] if eta else []
        if gap is not None and gap >= SLOW_ITEM_SECONDS:
            due.append(self.changed_at + gap - now)
        return min(due, default=None)

    @property
    def _prior(self) -> Prior | None:
        """The last time's pace for all of this time's work; None for what was not counted, or in another unit."""
        last = self.last_times.get(self.phase)
        if not self.total or not last or last["unit"] != self.unit or not last["done"]:
            return None
        return Prior(self._work(self.total), last["seconds"] / last["done"] * self.total)

    def against_last_time(self, now: float) -> float | None:
        """How many times as long as last time this phase takes; None while that is unknown."""
        prior, eta = self._prior, self.eta(now)
        return self.meter.against(prior, eta) if prior and eta else None

    @property
    def _gap_seconds(self) -> float | None:
        return None if self.done is None else self.meter.gap_seconds or self.printed_pace

    def stall(self, now: float, limits: Mapping[str, float]) -> Stall | None:
        """A Stall when (phase, done) has not changed for longer than the phase's limit.

        `limits`: seconds by phase, with a `default`; a job whose own pace is slow gets STALL_PACE_FACTOR times it.
        """
        limit = max(limits.get(self.phase, limits["default"]), STALL_PACE_FACTOR * (self._gap_seconds or 0.0))
        age = now - self.changed_at
        return Stall(self.phase, age, limit) if age > limit else None

    def line(self, now: float) -> str:
        counts = None if self.done is None or self.unit is None else Counts(self.done, self.total, self.unit)
        estimates = self.pace, self.eta(now), self.against_last_time(now)
        return report_line(self.phase, now - self.phase_at, counts, self.work_bytes, *estimates)

    def report(self, now: float) -> str | None:
        """The report line when one is due: a new phase, a phase's end, a milestone, or a long time without any."""
        if not self._report_is_due(now):
            return None
        self.reported_phase, self.reported_at, self.reported_done = self.phase, now, self.done
        return self.line(now)

    def untold_counts(self, now: float) -> str | None:
        """The line of counts that no report has told yet."""
        return self.line(now) if self.done is not None and self.done != self.reported_done else None

    def _report_is_due(self, now: float) -> bool:
        if self.phase != self.reported_phase:
            return True
        if self.done is not None and self.done == self.total and self.done != self.reported_done:
            return True
        since = now - self.reported_at
        return since >= QUIET_SECONDS or (since >= REPORT_SECONDS and self._milestone_passed())

    def _milestone_passed(self) -> bool:
        if not self.total or self.done is None:
            return False
        percents = (100 * (self.reported_done or 0) / self.total, 100 * self.done / self.total)
        return percents[0] // MILESTONE_PERCENT != percents[1] // MILESTONE_PERCENT

    def snapshot(self, now: float) -> dict[str, Any]:
        """What the UI and XCom show: small and JSON. `pace` has seconds per item."""
        eta, pace = self.eta(now), self.pace
        return {
            "phase": self.phase,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "pace": asdict(pace) if pace else None,
            "eta_seconds": round(eta.seconds, 1) if eta else None,
            "eta_error_seconds": round(eta.error_seconds, 1) if eta and eta.error_seconds is not None else None,
            "against_last_time": self.against_last_time(now),
            "line": self.line(now),
        }
