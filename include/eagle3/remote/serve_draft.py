"""Step `serve_draft`, on the GPU host: the vLLM server speculates with the run's best draft head.

By hand: `python -m eagle3.remote serve_draft --run-dir DIR`.
"""

from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_dir import read_json
from eagle3.remote.server import ensure
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: `{action: kept | started | replaced, url, model, checkpoint, seconds}`."""
    return ensure(step, best_checkpoint(step))


def best_checkpoint(step: Step) -> Path:
    """The folder that training chose. Raises ConfigError when there is none."""
    path = step.run_dir.best_checkpoint_path
    if not path.exists():
        raise ConfigError(f"{step.name} needs a trained draft head, but {path} is not there: run train_draft first")
    return step.run_dir.work_dir.resolve(read_json(path)["checkpoint"])
