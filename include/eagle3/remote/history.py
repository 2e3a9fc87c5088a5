"""`history.jsonl` of the GPU host: what the phases of every step took. The baseline of later estimates."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from eagle3.contract.event import PhaseTime
from eagle3.remote.step import Step

VERSION = 2
LOADING = "loading_weights"  # takes the same whichever step loads the target


def append(step: Step, done: bool, seconds: float) -> None:
    """One line for one run of a step."""
    entry = {
        "v": VERSION,
        "t": round(time.time(), 3),
        "step": step.name,
        "run": step.run_dir.root.name,
        **_setting(step),
        "done": done,
        "seconds": round(seconds, 3),
        "phases": step.events.end_phases(),
    }
    # one write of one line: two steps that end at once do not mix
    descriptor = os.open(step.run_dir.work_dir.history_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


def last_times(step: Step) -> dict[str, PhaseTime]:
    """The phases of the last such step that was done here with this target, and its last load by any step."""
    times: dict[str, PhaseTime] = {}
    setting = _setting(step)
    for entry in _entries(step):
        if not entry["done"] or any(entry.get(name) != value for name, value in setting.items()):
            continue
        if entry["step"] == step.name:
            times.update(entry["phases"])
        elif LOADING in entry["phases"]:
            times[LOADING] = entry["phases"][LOADING]
    return times


def _setting(step: Step) -> dict[str, Any]:
    return {"model": step.spec.served_model_name, "tensor_parallel_size": step.spec.tensor_parallel_size}


def _entries(step: Step) -> Iterator[dict[str, Any]]:
    """Whole lines of this version, oldest first."""
    path = step.run_dir.work_dir.history_path
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:  # cut by a full disk
                continue
            if entry.get("v") == VERSION:
                yield entry
