"""One watched job: polls in; log lines, progress and the outcome out. Shared by the trigger and the reschedule sensor.

It knows where it is by two offsets and the job's attempt, so that another process can go on from `as_state`. Time is
the host's, in seconds since its boot: no clock that jumps moves a pace or a stall.
"""

import shlex
from collections import deque
from dataclasses import asdict
from typing import Any

from eagle3.contract.event import parse_event
from eagle3.contract.job import TERMINAL, Verdict
from eagle3.gpu_host.remote_job import Poll, RemoteJob, Seen
from eagle3.gpu_host.shell import Command
from eagle3.pipeline import dialects
from eagle3.pipeline.failures import Evidence
from eagle3.pipeline.gpu_health import gpu_troubles
from eagle3.pipeline.log_lines import LineSplitter
from eagle3.pipeline.progress import Progress
from eagle3.pipeline.ration import Ration
from eagle3.pipeline.secrets import redact
from eagle3.pipeline.standstill import describe
from eagle3.pipeline.steps import step_named

MIN_POLL_SECONDS = 1.0
TAIL_SEGMENTS = 30  # of the log's end, shown when a job fails


class JobWatch:
    """Follows a job until it ends or reaches `until_phase`."""

    def __init__(self, job: RemoteJob, until_phase: str | None, state: dict[str, Any] | None = None) -> None:
        self._job = job
        self._until_phase = until_phase
        self._step = step_named(job.step)
        self._is_resumed = state is not None
        state = state or {}
        self._seen = Seen(**state.get("seen", {}))
        self._progress = Progress.from_state(state["progress"]) if "progress" in state else None
        self._last: dict[str, Any] = state.get("last", {})
        self._metrics: dict[str, Any] = state.get("metrics", {})
        self._splitter = LineSplitter()
        self._pending_event = b""
        self._tail: deque[str] = deque(maxlen=TAIL_SEGMENTS)
        self._evidence = Evidence()
        self._poll: Poll | None = None
        self._stalled_phase: str | None = state.get("stalled_phase")
        self._wants_look = False  # at what a stalled job does
        self._first_gpus: dict[str, Any] | None = state.get("first_gpus")
        self._gpu_troubles: list[str] = state.get("gpu_troubles", [])
        self._waiting_for: str | None = None
        self._phases: set[str] = set(state.get("phases", []))
        self._worked_in: str = state.get("worked_in", "")
        self._ration = Ration(**state.get("ration", {}))
        self._now = 0.0

    def as_state(self) -> dict[str, Any]:
        """Small plain data. What the log has not completed yet is read again."""
        return {
            "seen": {
                **asdict(self._seen),
                "log_offset": self._seen.log_offset - self._splitter.pending_bytes,
                "event_offset": self._seen.event_offset - len(self._pending_event),
            },
            "progress": self._progress.as_state() if self._progress else Progress.begin(self._now).as_state(),
            "last": self._last,
            "metrics": self._metrics,
            "stalled_phase": self._stalled_phase,
            "first_gpus": self._first_gpus,
            "gpu_troubles": self._gpu_troubles,
            "phases": sorted(self._phases),
            "worked_in": self._worked_in,
            "ration": asdict(self._ration),
        }

    def poll_command(self) -> Command:
        return self._job.poll_command(self.question())

    def follow_command(self) -> Command:
        return self._job.follow_command()

    def question(self) -> bytes:
        """The next poll, for the command that follows the job."""
        return self._seen.as_question(look=self._wants_look)

    def take(self, poll: Poll) -> list[str]:
        """Digest one answer of the host; returns the lines worth a place in the task log."""
        self._now = now = poll.boottime
        if self._progress is None or poll.state.attempt != self._seen.attempt:
            self._begin_attempt(now)
        assert self._progress is not None
        self._poll, self._seen = poll, poll.seen
        lines: list[str] = []
        segments = self._splitter.feed(poll.log)
        if poll.state.verdict in TERMINAL and not poll.has_more:
            segments += self._splitter.finish()
        for segment in segments:
            self._tail.append(segment)
            self._evidence.feed(segment)
            for event in dialects.read(segment):
                self._consume(event, now, lines)
        *complete, self._pending_event = (self._pending_event + poll.events).split(b"\n")
        for line in complete:
            if (own := parse_event(line)) is not None:
                self._consume(own, now, lines)
        if poll.state.verdict is Verdict.WAITING and poll.state.waiting_for != self._waiting_for:
            self._waiting_for = poll.state.waiting_for
            lines.append(f"waiting for the host's GPUs, which {self._waiting_for or 'another job'} uses")
        lines += self._report(now)
        if self.is_over:
            self._stalled_phase = None
        else:
            lines = self._ration.admit(lines, now) + self._stall(now)
        lines += self._hardware()
        if poll.standstill:
            lines += describe(poll.standstill)
        return [redact(line) for line in lines]

    def _begin_attempt(self, now: float) -> None:
        self._progress = Progress.begin(now)
        self._splitter, self._pending_event = LineSplitter(), b""
        self._tail.clear()
        self._evidence = Evidence()
        self._phases.clear()
        self._last.clear()
        self._metrics.clear()

    def _consume(self, event: dict[str, Any], now: float, lines: list[str]) -> None:
        assert self._progress is not None
        kind, of_step = event["kind"], "dialect" not in event
        phase, untold = self._progress.phase, self._progress.untold_counts(now)
        if kind == "finished":
            self._worked_in = self._progress.line(now)
        self._progress.consume(event, now)
        if self._progress.phase != phase:
            if untold:  # how far the phase came that ends here
                lines.append(untold)
            self._phases.add(self._progress.phase)
            self._metrics.clear()
        if of_step and kind == "warning":
            lines.append(f"warning: {event['text']}")
        elif of_step and kind == "metric":
            self._metrics[event["name"]] = event["value"]
        elif of_step and kind == "finished":
            self._last = {"result": event["result"], "error": event["error"]}

    def _report(self, now: float) -> list[str]:
        """The progress line when one is due, with the latest metrics."""
        assert self._progress is not None
        line = self._progress.report(now)
        return [", ".join([line, *(f"{name} {value}" for name, value in self._metrics.items())])] if line else []

    def _stall(self, now: float) -> list[str]:
        """A line when the job begins to stand still; the next poll then asks what its processes do."""
        assert self._progress is not None
        stall = self._progress.stall(now, self._step.stall_seconds)
        before, self._stalled_phase = self._stalled_phase, stall.phase if stall else None
        self._wants_look = stall is not None and stall.phase != before
        if not stall or not self._wants_look:
            return []
        limits = f"no progress for {stall.age_seconds:.0f} s of {stall.limit_seconds:.0f}"
        return [f"stalled in {stall.phase}: {limits}. {self.look_further}"]

    def _hardware(self) -> list[str]:
        """A line for each new trouble of the GPUs."""
        assert self._poll is not None
        self._first_gpus = self._first_gpus or self._poll.gpus
        before, self._gpu_troubles = self._gpu_troubles, gpu_troubles(self._poll.gpus, self._first_gpus)
        return [f"warning: {trouble}" for trouble in self._gpu_troubles if trouble not in before]

    @property
    def has_more(self) -> bool:
        """The host has more to tell right now."""
        return self._poll is not None and (self._poll.has_more or self._wants_look)

    def seconds_to_next_poll(self, at_most: float) -> float:
        """Until something new is due by the job's own pace; sooner where that is not known, or overdue."""
        due = self._progress.news_due_seconds(self._now) if self._progress else None
        if due is None or due < 0:
            due = at_most / 3
        return min(at_most, max(MIN_POLL_SECONDS, due + MIN_POLL_SECONDS / 2))

    @property
    def reached_phase(self) -> bool:
        return self._until_phase in self._phases

    @property
    def is_over(self) -> bool:
        """The job ended and its log is drained, or the awaited phase began."""
        if self._poll is None:
            return False
        ended = self._poll.state.verdict in TERMINAL and not self._poll.has_more
        return ended or (self.reached_phase and self._poll.state.verdict is Verdict.RUNNING)

    @property
    def has_begun(self) -> bool:
        return self._poll is not None

    @property
    def needs_whole_log(self) -> bool:
        """The job failed, and why may stand in what another process has read: begin again with `afresh`."""
        return self._is_resumed and "message" in self.outcome()

    def afresh(self) -> "JobWatch":
        return JobWatch(self._job, self._until_phase)

    def progress(self) -> dict[str, Any]:
        """What the UI shows."""
        assert self._progress is not None
        assert self._poll is not None
        verdict = Verdict.STALLED if self._stalled_phase else self._poll.state.verdict
        return {
            **self._progress.snapshot(self._now),
            "metrics": dict(self._metrics),
            "gpus": self._poll.gpus,
            "verdict": str(verdict),
        }

    def outcome(self) -> dict[str, Any]:
        """The event for the operator: `verdict`, `result`, and for a failure `message`, `config_error` and `tail`."""
        assert self._poll is not None
        state = self._poll.state
        outcome: dict[str, Any] = {"verdict": str(state.verdict), "result": self._last.get("result")}
        if state.verdict is Verdict.FINISHED and self._last.get("result") is None:
            outcome["verdict"] = str(Verdict.FAILED)  # exit code 0 is no success by itself
            outcome["message"] = f"{self._job.step} ended with exit code 0, but without a result"
        elif state.verdict in (Verdict.FAILED, Verdict.VANISHED):
            error = self._last.get("error") or {}
            failure = self._evidence.find_failure()
            causes = []
            if error:
                causes.append(f"{error['type']}: {error['message']}")
            if failure and failure.decisive_line not in "".join(causes):
                causes.append(f"{failure.reason}: {failure.decisive_line} ({failure.advice})")
            outcome["config_error"] = error.get("type") == "ConfigError"
            where = self._worked_in or (self._progress.line(self._now) if self._progress else "starting")
            outcome["message"] = f"{self._job.step} failed in {where}: {state.ending}. " + " | ".join(causes)
        if "message" in outcome:
            outcome["message"] = f"{redact(outcome['message'])}\n{self.look_further}"
            outcome["tail"] = [redact(segment) for segment in self._tail]
        return outcome

    @property
    def look_further(self) -> str:
        job = self._job
        command = f"eagle3 job tail {shlex.quote(job.job_id)} --host {shlex.quote(job.ssh_conn_id)}"
        return f"To look further: {command} (the whole log on that host: {job.job_dir}/log)"
