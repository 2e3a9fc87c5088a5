"""How a target's folder comes to be: filled aside, split into shards, renamed. Runs on the GPU host."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_aside(model_dir: Path) -> Iterator[Path | None]:
    """A fresh folder to fill, renamed to `model_dir` when the body ends well; None when `model_dir` is there already.

    A killed maker leaves only the folder aside, which the next one empties. Two makers take turns.
    """
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    with open(model_dir.with_name(f".{model_dir.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if model_dir.exists():
            yield None
            return
        aside = model_dir.with_name(f".{model_dir.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        for path in aside.iterdir():
            _fsync(path)
        _fsync(aside)
        os.rename(aside, model_dir)
        _fsync(model_dir.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def split_into_shards(model_dir: Path, num_shards: int) -> None:
    """Replace `model.safetensors` by `num_shards` shards of neighbouring tensors and their index."""
    from safetensors.torch import load_file, save_file

    whole = model_dir / "model.safetensors"
    tensors = load_file(whole)
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        shard_name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        chosen = names[number * len(names) // num_shards : (number + 1) * len(names) // num_shards]
        save_file({name: tensors[name] for name in chosen}, model_dir / shard_name, metadata={"format": "pt"})
        (model_dir / shard_name).chmod(0o644)  # safetensors makes them 0600; the server may run as another user
        weight_map |= dict.fromkeys(chosen, shard_name)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    whole.unlink()
