"""Traces on disk and the rows that are made from them.

A trace is one answered prompt, one JSON line of `traces.jsonl`:
`{id, prompt, prompt_token_ids, token_ids, reasoning, content, finish_reason}`. Token ids are the server's own:
nothing is ever tokenised twice.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.remote.step import Step


@dataclass(frozen=True)
class Prompt:
    id: str
    messages: list[dict[str, str]]


@dataclass(frozen=True)
class Row:
    """One training row. `loss_mask` is 1 on generated tokens (reasoning and the closing token included)."""

    index: int
    trace_id: str
    input_ids: list[int]
    loss_mask: list[int]


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file that a killed process may have left half a line at the end of."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and line.strip():
                yield json.loads(line)


def read_prompts(step: Step) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts for training and, disjoint from them, those held out for evaluation.

    Held out are the first of the file, so that a file which grows never moves one into training. `num_samples` 0 takes
    all others. Raises ConfigError for a missing or malformed file, a repeated id, or too few prompts.
    """
    path, spec = step.prompts_path, step.spec
    if not path.exists():
        raise ConfigError(f"prompts file {path} does not exist: set prompts_file to a file on the host")
    prompts: dict[str, Prompt] = {}
    texts = set()
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        prompt = _parse_prompt(line, f"{path}:{number}")
        if prompt.id in prompts:
            raise ConfigError(f"{path}:{number}: id {prompt.id!r} is there twice; ids must be unique")
        text = json.dumps(prompt.messages, sort_keys=True)
        if text not in texts:  # the same words under two ids must not end in both halves
            texts.add(text)
            prompts[prompt.id] = prompt
    needed = max(spec.num_samples, 1) + spec.num_eval_prompts
    if len(prompts) < needed:
        raise ConfigError(
            f"{path} has {len(prompts)} distinct prompts, but num_eval_prompts + num_samples = "
            f"{spec.num_eval_prompts} + {spec.num_samples} need {needed}"
        )
    chosen = list(prompts.values())
    held_out, others = chosen[: spec.num_eval_prompts], chosen[spec.num_eval_prompts :]
    return others[: spec.num_samples or None], held_out


def _parse_prompt(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
        messages = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
        return Prompt(str(record["id"]), messages)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f'{where}: not a prompt ({error!r}); a line is {{"id": "...", "prompt": "..."}} or has "messages"'
        ) from None


def read_rows(step: Step) -> list[Row]:
    """The training rows in trace order, cut to what the engine can hold (`max_model_len` - 1 tokens).

    The row index is the position among the traces: the same traces always give the same rows.
    """
    if not step.run_dir.traces_path.exists():
        raise ConfigError(f"no traces at {step.run_dir.traces_path}: run generate_traces first")
    longest = step.spec.max_model_len - 1
    rows = []
    for index, trace in enumerate(read_json_lines(step.run_dir.traces_path)):
        prompt, generated = trace["prompt_token_ids"], trace["token_ids"]
        rows.append(
            Row(
                index,
                trace["id"],
                (prompt + generated)[:longest],
                ([0] * len(prompt) + [1] * len(generated))[:longest],
            )
        )
    return rows
