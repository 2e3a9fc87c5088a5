"""A target's safetensors shards, judged by their headers alone, on the GPU host. Stdlib only; no tensor is read.

Format: 8 bytes little-endian length, a JSON header of that length with `data_offsets`, then the tensors' bytes.
"""

import json
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError

INDEX_NAME = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"
SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class WeightFile:
    """`engine_bytes` is what its tensors take at least once loaded: the engine rounds 32-bit floats to 16 bits."""

    name: str
    num_bytes: int
    engine_bytes: int


class _Broken(Exception):
    pass


@cache
def read_weight_files(model_dir: Path) -> list[WeightFile]:
    """The shards in name order, each as long as its header says and with the tensors that the index expects in it.

    Raises ConfigError with the broken and missing ones.
    """
    expected = _expected_tensors(model_dir)
    files, problems = [], []
    for name, tensors in sorted(expected.items()):
        try:
            stored = _stored_tensors(model_dir / name)
            if absent := sorted(tensors - stored.keys()):
                raise _Broken(f"lacks {len(absent)} tensors that {INDEX_NAME} places there, the first is {absent[0]}")
            engine_bytes = sum(
                _num_bytes(tensor) // (2 if tensor["dtype"] == "F32" else 1) for tensor in stored.values()
            )
            files.append(WeightFile(name, (model_dir / name).stat().st_size, engine_bytes))
        except _Broken as problem:
            problems.append(f"{name} {problem}")
    if problems:
        more = f"; and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise ConfigError(
            f"{len(problems)} of {len(expected)} shards in {model_dir} are unusable: "
            f"{'; '.join(problems[:SHOWN_PROBLEMS])}{more}. Copy or download these files again"
        )
    return files


def shard_sizes(model_dir: Path) -> list[int]:
    """Bytes of each shard in vLLM's order of loading, by the numbers in their names; [] when one is missing."""
    try:
        names = sorted(_expected_tensors(model_dir), key=_natural_key)
        return [(model_dir / name).stat().st_size for name in names]
    except (ConfigError, OSError):
        return []


def _natural_key(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _expected_tensors(model_dir: Path) -> dict[str, set[str]]:
    """Each shard's tensors by the index; without an index, the files there are and those that their names promise."""
    index = model_dir / INDEX_NAME
    if index.exists():
        expected: dict[str, set[str]] = {}
        for tensor, shard in _weight_map(index).items():
            expected.setdefault(shard, set()).add(tensor)
        return expected
    names = {path.name for path in model_dir.glob("*.safetensors")}
    if not names:
        raise ConfigError(f"{model_dir} has no *.safetensors files: the target's weights must be in that format")
    for match in filter(None, [re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", name) for name in sorted(names)]):
        stem, number, total = match.groups()
        names |= {f"{stem}-{k:0{len(number)}d}-of-{total}.safetensors" for k in range(1, int(total) + 1)}
    return {name: set() for name in names}


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} is not a safetensors index ({error!r}): copy or download it again") from None
    return dict(weight_map)


def _num_bytes(tensor: dict[str, Any]) -> int:
    start, end = tensor["data_offsets"]
    return int(end - start)


def _stored_tensors(path: Path) -> dict[str, dict[str, Any]]:
    """By name: dtype, shape and data_offsets."""
    if not path.exists():
        raise _Broken("is missing")
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        if LFS_POINTER.startswith(start) and start:
            raise _Broken("is a git LFS pointer, not the file itself (git lfs pull)")
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < header_bytes <= size - 8:
            raise _Broken(f"is cut inside its header or no safetensors file ({size} bytes)")
        header = _parsed(file.read(header_bytes))
    end = 8 + header_bytes + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if size != end:
        raise _Broken(f"is {'cut off' if size < end else 'too long'}: {size} of {end} bytes")
    return header


def _parsed(header: bytes) -> dict[str, dict[str, Any]]:
    try:
        tensors = dict(json.loads(header))
        tensors.pop("__metadata__", None)
        if all(tensor["dtype"] and _num_bytes(tensor) >= 0 for tensor in tensors.values()):
            return tensors
    except (ValueError, KeyError, TypeError):
        pass
    raise _Broken("has no readable safetensors header")
