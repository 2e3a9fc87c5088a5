"""The label check: does the last tap, through the target's final norm and lm_head, give the traces' own next tokens?

Runs on the GPU host. It catches labels from a wrong layer, another checkpoint, or shifted rows, before training.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_spec import RunSpec
from eagle3.remote.dataset import Row
from eagle3.remote.hidden_states import state_path
from eagle3.remote.step import Step

Item = TypeVar("Item")

ROWS = 8
POSITIONS_PER_ROW = 64
MARGIN = 0.05  # room for the differences between kernels of two engines, and for near ties


@dataclass(frozen=True)
class LabelAgreement:
    """How often argmax(lm_head(norm(h))) is the trace's next token, over `positions` generated tokens.

    `expected` is how often sampling from the same logits (temperature, top-p) picks the most likely token: 1 for greedy
    traces. A right layer agrees about that often, whatever the temperature.
    """

    positions: int
    observed: float
    expected: float
    standard_error: float

    @property
    def lowest_plausible(self) -> float:
        return self.expected - MARGIN - 3 * self.standard_error

    @property
    def is_broken(self) -> bool:
        return self.observed < self.lowest_plausible


def measure_label_agreement(step: Step, rows: list[Row]) -> LabelAgreement:
    """Agreement over some generated positions of some rows, spread evenly.

    Raises ConfigError when the rows have no generated token, or the target's norm or lm_head are not there or are
    quantised.
    """
    candidates = [row for row in rows if any(row.loss_mask[1:])]
    if not candidates:
        raise ConfigError(f"no generated token in {step.run_dir.traces_path}: run generate_traces again")
    head = _Head(step.model_dir)
    hits: list[bool] = []
    chances: list[float] = []
    for row in _spread(candidates, ROWS):
        generated = [position for position in range(1, len(row.input_ids)) if row.loss_mask[position]]
        positions = torch.tensor(_spread(generated, POSITIONS_PER_ROW))
        states = load_file(state_path(step.run_dir, row.index))["hidden_states"][:, -1]
        logits = head.logits(states[positions - 1])
        hits += (logits.argmax(-1) == torch.tensor(row.input_ids)[positions]).tolist()
        chances += top_token_chance(logits, step.spec).tolist()
    return LabelAgreement(
        positions=len(hits),
        observed=sum(hits) / len(hits),
        expected=sum(chances) / len(chances),
        standard_error=math.sqrt(sum(chance * (1 - chance) for chance in chances)) / len(chances),
    )


def top_token_chance(logits: torch.Tensor, spec: RunSpec) -> torch.Tensor:
    """[positions]: the chance that the spec's sampling picks the most likely token of `logits` [positions, vocab]."""
    if spec.temperature == 0:
        return torch.ones(len(logits))
    falling = (logits / spec.temperature).softmax(-1).sort(-1, descending=True).values
    mass_before = falling.cumsum(-1) - falling
    kept_mass = torch.where(mass_before < spec.top_p, falling, 0).sum(-1)
    return falling[:, 0] / kept_mass


class _Head:
    """The target's final RMS norm and lm_head, read from the shards by the loader that the trainer uses."""

    def __init__(self, model_dir: Path) -> None:
        from speculators.utils.loading import load_model_layers  # seconds to import

        weights = load_model_layers(["model.norm.weight", "lm_head.weight", "embed_tokens.weight"], str(model_dir))
        config = json.loads((model_dir / "config.json").read_text())
        self._epsilon = config.get("text_config", config).get("rms_norm_eps", 1e-6)
        norm = weights.get("model.norm.weight")
        projection = weights.get("lm_head.weight", weights.get("embed_tokens.weight"))  # tied: the embedding serves
        if norm is None or projection is None or not projection.is_floating_point():
            raise ConfigError(
                f"{model_dir} has no final norm and unquantised lm_head (or tied embedding) under a name that "
                "speculators knows: it cannot train on this target either"
            )
        self._norm, self._projection = norm, projection

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[positions, vocab] float32 from [positions, hidden_size], rounded where the engine rounds."""
        wide = states.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._epsilon)
        return torch.nn.functional.linear(normed.to(self._norm.dtype) * self._norm, self._projection).float()


def _spread(items: list[Item], count: int) -> list[Item]:
    """At most `count` of the items, evenly spread."""
    if len(items) <= count:
        return items
    return [items[index * len(items) // count] for index in range(count)]
