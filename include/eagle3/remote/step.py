"""What every step gets: its spec, its folder, and where to report."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.event import EventWriter
from eagle3.contract.run_dir import RunDir, read_json
from eagle3.contract.run_spec import RunSpec, parse_run_spec


@dataclass(frozen=True)
class Step:
    """One running step. `run(step)` of each step module returns its result: a small JSON document."""

    name: str
    spec: RunSpec
    run_dir: RunDir
    events: EventWriter

    @property
    def model_dir(self) -> Path:
        return self.run_dir.work_dir.resolve(self.spec.model_path)

    @property
    def prompts_path(self) -> Path:
        return self.run_dir.work_dir.resolve(self.spec.prompts_file)

    def result_of(self, step: str) -> Any:
        """The result of an earlier step of this run.

        Raises ConfigError naming the missing step: a later step checks its inputs, not its upstream's colour.
        """
        path = self.run_dir.result_path(step)
        if not path.exists():
            raise ConfigError(f"{self.name} needs the result of {step}, but {path} is not there: run {step} first")
        return read_json(path)


def load_step(name: str, run_dir: Path, events: EventWriter) -> Step:
    """Raises ConfigError when the folder has no valid run spec."""
    paths = RunDir(run_dir.absolute())
    if not paths.run_spec_path.exists():
        raise ConfigError(f"no run spec at {paths.run_spec_path}: is --run-dir a folder of runs/?")
    spec = parse_run_spec(read_json(paths.run_spec_path))
    return Step(name, spec, paths, events)


def device_type() -> str:
    """`cuda` or `cpu`: what the engines on this host run on. EAGLE3_DEVICE overrides."""
    if device := os.environ.get("EAGLE3_DEVICE"):
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
