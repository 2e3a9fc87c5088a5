"""The steps of a run as data: what each is called, needs and may take. Control side.

The names are those of eagle3.remote; a test says when one is forgotten on either side.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from eagle3.contract.errors import ConfigError

MINUTE = 60.0
HOUR = 3600.0

# How long (phase, done) may stand still. Text-only limits: a slow job's own pace raises them (Progress.stall).
# Kernel tuning and weight repacking print nothing for many minutes; a server that serves may be idle for ever.
STALL_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        "default": 15 * MINUTE,
        "engine_init": 10 * MINUTE,
        "loading_weights": 5 * MINUTE,
        "post_load": 30 * MINUTE,
        "generating": 10 * MINUTE,
        "training": 30 * MINUTE,
        "serving": math.inf,
    }
)


@dataclass(frozen=True)
class Step:
    """One remote step. `needs_gpu`: it needs all GPUs for itself and holds the host's GPU lock, as the server does."""

    name: str
    title: str
    needs_gpu: bool
    max_runtime_seconds: float
    retries: int
    stall_seconds: Mapping[str, float] = field(default_factory=lambda: STALL_SECONDS)


# Loads of very large targets take half an hour on a good day and hours on a cold network disk.
_LOAD = 4 * HOUR
# A file system is walked or a tensor file is written without any report in between.
_QUIET_WORK: Mapping[str, float] = MappingProxyType({**STALL_SECONDS, "default": HOUR})
# Silent loaders exist (no bar at all): the step watches its server's own log and decides by itself.
_LOADING: Mapping[str, float] = MappingProxyType({**STALL_SECONDS, "loading_weights": HOUR, "post_load": HOUR})

STEPS: tuple[Step, ...] = (
    Step("preflight", "Check the host", False, 30 * MINUTE, 1),
    Step("find_changes", "Find what is new", False, 4 * HOUR, 1, _QUIET_WORK),
    Step("ensure_server", "Ensure the server", False, _LOAD, 2, _LOADING),
    Step("generate_traces", "Generate traces", False, 7 * 24 * HOUR, 3),
    Step("stop_server", "Stop the server", False, HOUR, 2),
    Step("extract_hidden_states", "Extract hidden states", True, 2 * 24 * HOUR, 3),
    Step("verify_hidden_states", "Verify hidden states", False, 4 * HOUR, 1, _QUIET_WORK),
    Step("start_server", "Start the server", False, _LOAD, 3, _LOADING),
    Step("build_vocab_mapping", "Build the vocabulary mapping", False, HOUR, 2, _QUIET_WORK),
    Step("train_draft", "Train the draft", False, 7 * 24 * HOUR, 3, _QUIET_WORK),
    Step("measure_baseline", "Measure the baseline", False, 4 * HOUR, 2),
    Step("serve_draft", "Serve with the draft", False, _LOAD, 2, _LOADING),
    Step("evaluate_draft", "Evaluate the draft", False, 4 * HOUR, 2),
    Step("report", "Write the report", False, 15 * MINUTE, 2),
)

_BY_NAME = {step.name: step for step in STEPS}


def step_named(name: str) -> Step:
    """Raises ConfigError naming the known steps."""
    if name not in _BY_NAME:
        raise ConfigError(f"unknown step {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
