"""Hidden states on disk: one file a row, as speculators' trainer reads it, and the manifest of the rows that are whole.

Runs on the GPU host; shared by extraction, verification and training. `hs_<row>.safetensors` holds `hidden_states`
[tokens, taps, hidden_size] and `token_ids` [tokens] int64; the last tap is the final block's output before the norm.
"""

import hashlib
import json
import math
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from eagle3.contract.run_dir import RunDir
from eagle3.remote.dataset import Row, read_json_lines
from eagle3.remote.step import Step


class BadStates(Exception):
    """A row's states are missing or wrong; the message says how."""


@dataclass(frozen=True)
class StateFile:
    """One line of the manifest: a row whose file is whole on disk.

    `checksum` is BLAKE2b-64 of the file; `source` names what the states were made from (see `StateStore.source_of`).
    """

    row: int
    trace_id: str
    tokens: int
    num_bytes: int
    checksum: str
    source: str
    rms_per_slot: list[float]


def state_path(run_dir: RunDir, row: int) -> Path:
    """The file of one row, under the name that `speculators.train` looks for with `--hidden-states-path`."""
    return run_dir.hidden_states_dir / f"hs_{row}.safetensors"


def read_manifest(run_dir: RunDir) -> dict[int, StateFile]:
    """The manifest by row; a later line of a row replaces an earlier one."""
    if not run_dir.hidden_states_manifest_path.exists():
        return {}
    entries = (StateFile(**line) for line in read_json_lines(run_dir.hidden_states_manifest_path))
    return {entry.row: entry for entry in entries}


def write_manifest(run_dir: RunDir, entries: Iterable[StateFile]) -> None:
    """Replaces the manifest in one rename."""
    path = run_dir.hidden_states_manifest_path
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    with open(aside, "wb") as file:
        file.writelines(_manifest_line(entry) for entry in entries)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _fsync(path.parent)


def measure_states(content: bytes, token_ids: list[int], num_slots: int) -> list[float]:
    """The RMS of each slot of a state file's content.

    Raises BadStates for a file that cannot be read, other token ids, a wrong shape, or a slot that is all zero, not
    finite, or equal to another slot.
    """
    import torch
    from safetensors.torch import load

    try:
        tensors = load(content)
        states, stored_ids = tensors["hidden_states"], tensors["token_ids"]
    except Exception as error:  # safetensors raises its own error types, which differ between releases
        raise BadStates(f"not a readable state file of {len(content)} bytes: {error!r}") from error
    if stored_ids.tolist() != token_ids:
        raise BadStates(f"token ids differ from the row's ({stored_ids.numel()} stored, {len(token_ids)} in the row)")
    if states.ndim != 3 or states.shape[:2] != (len(token_ids), num_slots):
        raise BadStates(f"shape {list(states.shape)} instead of [{len(token_ids)}, {num_slots}, hidden_size]")
    rms_per_slot = [states[:, slot].float().square().mean().sqrt().item() for slot in range(num_slots)]
    for slot, rms in enumerate(rms_per_slot):
        if not math.isfinite(rms):
            raise BadStates(f"slot {slot} holds NaN or infinite values")
        if rms == 0:
            raise BadStates(f"slot {slot} is all zero")
        for other in range(slot):
            if torch.equal(states[:, slot], states[:, other]):
                raise BadStates(f"slots {other} and {slot} are identical: two taps gave one layer")
    return rms_per_slot


def checksum_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class StateStore:
    """The run's folder of states, written by one process.

    A file appears under its final name only when it is checked and on disk; its manifest line follows. A process
    killed at any point loses the rows in flight and nothing else.
    """

    def __init__(self, step: Step) -> None:
        self._run_dir = step.run_dir
        self._num_slots = len(step.spec.after_blocks)
        self._target = _target_identity(step)
        self._lock = threading.Lock()

    @property
    def scratch_dir(self) -> Path:
        """Where the engine puts its files: below the final folder, so that a rename moves them."""
        return self._run_dir.hidden_states_dir / ".scratch"

    def source_of(self, row: Row) -> str:
        """Checksum of what makes a row's states: the target's weights files, the taps and the row's token ids."""
        return hashlib.sha256(json.dumps([self._target, row.input_ids]).encode()).hexdigest()[:16]

    def is_whole(self, row: Row, entry: StateFile | None) -> bool:
        """Whether the row's file is there at full size and was made from these token ids, target and taps."""
        if entry is None or entry.source != self.source_of(row):
            return False
        path = state_path(self._run_dir, row.index)
        return path.exists() and path.stat().st_size == entry.num_bytes

    def open(self, rows: list[Row]) -> dict[int, StateFile]:
        """The rows that are whole. All else is removed: stale lines and files, locks, and what a killed run left."""
        manifest = read_manifest(self._run_dir)
        whole = {row.index: manifest[row.index] for row in rows if self.is_whole(row, manifest.get(row.index))}
        write_manifest(self._run_dir, whole.values())
        kept = {state_path(self._run_dir, row).name for row in whole}
        for path in self._run_dir.hidden_states_dir.glob("hs_*"):
            if path.name not in kept:
                path.unlink()
        shutil.rmtree(self.scratch_dir, ignore_errors=True)
        self.scratch_dir.mkdir()
        return whole

    def add(self, row: Row, scratch_path: Path) -> StateFile:
        """Checks the engine's file, brings it to disk under its final name, and notes it in the manifest."""
        if not scratch_path.exists():
            raise BadStates(f"the engine wrote no file {scratch_path.name}")
        content = scratch_path.read_bytes()
        rms_per_slot = measure_states(content, row.input_ids, self._num_slots)
        entry = StateFile(
            row=row.index,
            trace_id=row.trace_id,
            tokens=len(row.input_ids),
            num_bytes=len(content),
            checksum=checksum_of(content),
            source=self.source_of(row),
            rms_per_slot=[float(f"{rms:.6g}") for rms in rms_per_slot],
        )
        _fsync(scratch_path)
        os.replace(scratch_path, state_path(self._run_dir, row.index))
        _fsync(self._run_dir.hidden_states_dir)
        with self._lock, open(self._run_dir.hidden_states_manifest_path, "ab", buffering=0) as manifest:
            manifest.write(_manifest_line(entry))
            os.fsync(manifest.fileno())
        return entry


def _manifest_line(entry: StateFile) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def _target_identity(step: Step) -> list[object]:
    weights = sorted((path.name, path.stat().st_size) for path in step.model_dir.glob("*.safetensors"))
    config = hashlib.sha256((step.model_dir / "config.json").read_bytes()).hexdigest()
    return [str(step.model_dir), config, weights, step.spec.engine_layer_ids]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
