"""Why a job failed, from its log: the first specific cause wins, generic lines only when there is nothing better.

Control side, pure. To add a reason: a row in RULES and a case in tests/log_corpus/.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.pipeline.failure_rules import BENIGN, CAUSE_ABOVE, CAUSE_BELOW, RULES, Rank, Reason, Rule
from eagle3.pipeline.log_lines import message
from eagle3.pipeline.skimmer import Told

MAX_LINE_CHARS = 400
MAX_EVIDENCE = 500


@dataclass(frozen=True)
class Failure:
    reason: Reason
    decisive_line: str
    advice: str
    hangs: bool


_ANY = re.compile("|".join(rule.pattern for rule in RULES))
_RULES = tuple((rule, re.compile(rule.pattern)) for rule in RULES)
_BENIGN = re.compile("|".join(BENIGN))
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?::|$)")
_RESTARTED = re.compile(
    r"vLLM API server version|non-default args: \{|server_args=ServerArgs\(|EAGLE Offline Data Generation"
)
_GAVE_UP_TRYING = re.compile(r"[Rr]etrying|Skipping|Ignoring|[Ff]alling back")
# A process pool that is being taken down reports dead members: that is its end, not its cause of death.
_STOPPING = re.compile(
    r"\[shutdown\].*(?:trigger|send sigterm|start mode)|Shutting down Ray distributed executor"
    r"|Processed prompts: 100%|Data generation complete!|All hidden states generated or job finished"
)
_FRAME = re.compile(r"^\s*File \".*\", line \d+")
_RAISE = re.compile(r"^\s*raise\b")
_WORKING = re.compile(r"Processed prompts:\s+\d{1,2}%")
_DIGITS_DECIDE = re.compile(r"exit ?code|Failed core proc|got signal")  # as the patterns of some rules do
_TELLING = (_ANY, _RESTARTED, _STOPPING, _WORKING, _GAVE_UP_TRYING)


class Evidence:
    """The segments of a log, fed one by one, that can matter to `find_failure`: bounded, however long the log is.

    The first and the last MAX_EVIDENCE are kept: the cause comes early, its generic echo late.
    """

    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=MAX_EVIDENCE)

    def feed(self, segment: str) -> Told:
        if not any(pattern.search(segment) for pattern in _TELLING) and not _EXCEPTION.search(message(segment)):
            return Told.MORE if _DIGITS_DECIDE.search(segment) else Told.NOTHING
        if _RESTARTED.search(segment):
            self._first.clear()
            self._last.clear()
        if len(self._first) < MAX_EVIDENCE:
            self._first.append(segment)
        else:
            self._last.append(segment)
        return Told.COUNTS if _WORKING.search(segment) else Told.MORE

    def find_failure(self) -> Failure | None:
        return find_failure([*self._first, *self._last])


def find_failure(segments: Sequence[str]) -> Failure | None:
    """The failure that a log (segments of log_lines, in order) tells of, or None.

    Only text after the last start of the program counts. Hangs and orphans are not in the text: see Progress.stall.
    """
    start = max((index for index, segment in enumerate(segments) if _RESTARTED.search(segment)), default=0)
    best: tuple[Rule, int] | None = None
    stopping = False
    for index in range(start, len(segments)):
        segment = segments[index]
        rule = _rule_of(segments, index)
        if rule and not (stopping and rule.rank > Rank.SPECIFIC) and (best is None or rule.rank < best[0].rank):
            best = rule, index
            if rule.rank is Rank.SPECIFIC:
                break
        stopping = bool(_STOPPING.search(segment)) or (stopping and not _WORKING.search(segment))
    if best is None:
        return None
    rule, index = best
    return Failure(
        rule.reason, _shown(segments[_decisive_index(segments, start, index)], rule), rule.advice, rule.hangs
    )


def _rule_of(segments: Sequence[str], index: int) -> Rule | None:
    text = message(segments[index])
    if not _ANY.search(text) or _BENIGN.search(text) or _is_source_code(segments, index):
        return None
    rule = next(rule for rule, pattern in _RULES if pattern.search(text))
    following = segments[index + 1] if index + 1 < len(segments) else ""
    if rule.reason is Reason.API_MISMATCH and (_GAVE_UP_TRYING.search(text) or _GAVE_UP_TRYING.search(following)):
        return None
    return rule


def _is_source_code(segments: Sequence[str], index: int) -> bool:
    """A traceback quotes the code that raises, often with the words of the message."""
    text = message(segments[index])
    previous = message(segments[index - 1]) if index else ""
    return bool(_RAISE.search(text) or _FRAME.search(text) or (_FRAME.search(previous) and text[:1].isspace()))


def _decisive_index(segments: Sequence[str], start: int, index: int) -> int:
    """Where a generic line only points at its cause, the nearest exception on that side; else the line itself."""
    if re.search(CAUSE_BELOW, segments[index]):
        candidates = range(index + 1, len(segments))
    elif re.search(CAUSE_ABOVE, segments[index]):
        candidates = range(index - 1, start - 1, -1)
    else:
        return index
    for candidate in candidates:
        text = message(segments[candidate])
        if _EXCEPTION.search(text) and not _ANY.search(text) and not _BENIGN.search(text):
            return candidate
    return index


def _shown(segment: str, rule: Rule) -> str:
    """At most MAX_LINE_CHARS of the line, around what matched."""
    text = message(segment)
    match = re.search(rule.pattern, text)
    first = max(0, match.end() - MAX_LINE_CHARS) if match else 0
    return text[first : first + MAX_LINE_CHARS].strip()
