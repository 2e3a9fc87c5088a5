"""`python -m eagle3.demo.targets NAME --work-dir DIR`: make DIR/models/NAME and DIR/prompts/NAME.jsonl, once.

Runs on the GPU host. A target that is there already is left alone; an interrupted one is made again from its start.
Exit status: 0 there; 2 the user must fix something.
"""

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

from eagle3.contract.errors import ConfigError
from eagle3.demo.targets.model_folder import made_aside

TARGETS = {
    "toy-qwen3-moe": "toy_qwen3_moe",
    "smollm2-135m": "smollm2",
    "toy-mla": "toy_mla",
}


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(prog="python -m eagle3.demo.targets", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=TARGETS, metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--work-dir", type=Path, required=True, metavar="DIR", help="the host's work directory")
    arguments = parser.parse_args()
    try:
        make_target(arguments.name, arguments.work_dir.expanduser().absolute())
    except ConfigError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 2
    return 0


def make_target(name: str, work_dir: Path) -> None:
    """Raises ConfigError when the work directory cannot be written or a needed package is missing."""
    model_dir, prompts_path = work_dir / "models" / name, work_dir / "prompts" / f"{name}.jsonl"
    if model_dir.exists() and prompts_path.exists():
        print(f"{name} is there already: {model_dir}")
        return
    started = time.monotonic()
    try:
        prompts_path.parent.mkdir(parents=True, exist_ok=True)
        with made_aside(model_dir) as folder:
            target = _target_module(name)
            if folder:
                target.make(folder)
            _write_prompts(prompts_path, target.prompts())
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"cannot make {name} under {work_dir}: {error}; choose a --work-dir that you may write"
        ) from error
    print(f"{name} made in {time.monotonic() - started:.0f} s: {model_dir}, {prompts_path}")


def _target_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"eagle3.demo.targets.{TARGETS[name]}")
    except ImportError as error:
        raise ConfigError(
            f"{name} needs torch and transformers, but {sys.executable} says: {error}; "
            "run this with the Python of the host environment"
        ) from error


def _write_prompts(path: Path, prompts: list[str]) -> None:
    """JSON lines `{id, prompt}`, written aside and renamed."""
    aside = path.with_name(f".{path.name}.partial")
    lines = [json.dumps({"id": f"{number:04d}", "prompt": prompt}) for number, prompt in enumerate(prompts)]
    with open(aside, "w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


if __name__ == "__main__":
    sys.exit(main())
