"""The vLLM server's counters, from the text of its `/metrics`. Pure and stdlib only."""

import re
from dataclasses import dataclass
from typing import Self

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Metrics:
    """Samples as (name, labels, value). A server with several engines has one sample for each."""

    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From Prometheus' text format."""
        matches = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
        return cls([(m["name"], dict(_LABEL.findall(m["labels"] or "")), float(m["value"])) for m in matches if m])

    def total(self, name: str) -> float | None:
        """Sum over all engines; None when the server has no such counter."""
        values = [value for sample, _, value in self.samples if sample == name]
        return sum(values) if values else None

    def by_position(self, name: str) -> dict[int, float]:
        """Draft position (0 is the first proposed token) to the sum over all engines."""
        totals: dict[int, float] = {}
        for sample, labels, value in self.samples:
            if sample == name and "position" in labels:
                position = int(labels["position"])
                totals[position] = totals.get(position, 0.0) + value
        return totals

    @property
    def requests_in_flight(self) -> int:
        """Running and waiting."""
        return int((self.total("vllm:num_requests_running") or 0) + (self.total("vllm:num_requests_waiting") or 0))

    @property
    def tokens_processed(self) -> int:
        """Prompt and generated tokens since the server started: it grows as long as the engine works."""
        return int((self.total("vllm:prompt_tokens_total") or 0) + (self.total("vllm:generation_tokens_total") or 0))


@dataclass(frozen=True)
class Speculation:
    """What the draft did between two readings."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: list[int]

    @classmethod
    def between(cls, before: Metrics, after: Metrics) -> Self | None:
        """None when the server does not speculate."""
        prefix = "vllm:spec_decode_num_"
        if after.total(f"{prefix}drafts_total") is None:
            return None

        def grown(name: str) -> int:
            return int((after.total(prefix + name) or 0) - (before.total(prefix + name) or 0))

        per_position = f"{prefix}accepted_tokens_per_pos_total"
        earlier, later = before.by_position(per_position), after.by_position(per_position)
        return cls(
            drafts=grown("drafts_total"),
            draft_tokens=grown("draft_tokens_total"),
            accepted=grown("accepted_tokens_total"),
            accepted_per_position=[int(later[k] - earlier.get(k, 0.0)) for k in sorted(later)],
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification step, the target's own included: 1 + accepted / drafts."""
        return 1 + self.accepted / self.drafts

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of drafts whose token at this position was accepted."""
        return [accepted / self.drafts for accepted in self.accepted_per_position]
