"""Step `find_changes`: what a run folder that is used night after night lacks. Runs on the GPU host.

By hand: `python -m eagle3.remote find_changes --run-dir DIR`. Traces of prompts that changed are dropped; when the
target or the sampling changed, all traces are set aside, never deleted.
"""

import os
import time
from typing import Any

from eagle3.contract.run_dir import read_json
from eagle3.remote.dataset import read_json_lines, read_prompts, read_rows
from eagle3.remote.hidden_states import StateStore, read_manifest
from eagle3.remote.step import Step
from eagle3.remote.trace_file import fingerprint, rewrite


def run(step: Step) -> dict[str, Any]:
    """`changed`, a `reason` for a person, and the counts behind it."""
    prompts = {prompt.id: prompt for prompt in read_prompts(step)[0]}
    settings = _set_aside_outdated(step)
    traced, dropped = _drop_changed(step, {name: prompt.messages for name, prompt in prompts.items()})
    new_prompts = len(prompts) - len(traced)
    missing_rows = _count_missing_rows(step)
    reasons = [f"{name} changed" for name in settings]
    if new_prompts:
        reasons.append(f"{new_prompts} of {len(prompts)} prompts have no trace")
    if missing_rows:
        reasons.append(f"{missing_rows} traces have no hidden states")
    return {
        "changed": bool(reasons),
        "reason": ", ".join(reasons) or f"nothing is new: all {len(prompts)} prompts have traces and hidden states",
        "new_prompts": new_prompts,
        "dropped_traces": dropped,
        "missing_rows": missing_rows,
    }


def _set_aside_outdated(step: Step) -> list[str]:
    """The names of the settings that changed since the traces were made; such traces move to `superseded/`."""
    path = step.run_dir.traces_fingerprint_path
    recorded = read_json(path) if path.exists() else {}
    made_with = fingerprint(step)
    changed = [name for name in made_with if recorded and recorded.get(name) != made_with[name]]
    if changed:
        aside = step.run_dir.root / "superseded" / time.strftime("%Y%m%dT%H%M%S")
        aside.mkdir(parents=True)
        os.rename(path.parent, aside / path.parent.name)
        step.events.warning(f"{', '.join(changed)} changed: the traces made before are in {aside}")
    return changed


def _drop_changed(step: Step, messages: dict[str, Any]) -> tuple[list[str], int]:
    """The ids of the traces that still belong to a prompt, and how many did not."""
    path = step.run_dir.traces_path
    if not path.exists():
        return [], 0
    traces = list(read_json_lines(path))
    kept = [trace for trace in traces if messages.get(trace["id"]) == trace["prompt"]]
    if len(kept) < len(traces):
        rewrite(path, kept)
    return [trace["id"] for trace in kept], len(traces) - len(kept)


def _count_missing_rows(step: Step) -> int:
    if not step.run_dir.traces_path.exists():
        return 0
    store, manifest = StateStore(step), read_manifest(step.run_dir)
    return sum(not store.is_whole(row, manifest.get(row.index)) for row in read_rows(step))
