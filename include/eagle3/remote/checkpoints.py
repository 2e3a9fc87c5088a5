"""The checkpoints of one training: which are complete, which is the best, which may go. Runs on the GPU host.

speculators writes an epoch's folder file by file and, on resume, trusts the largest number it finds. So an epoch counts
here only once `epochs.json` records it: its files (with sizes, flushed to disk) and its validation.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.contract.run_dir import read_json, write_json

WRITTEN_AFTER_VALIDATION = "val_metrics.json"


@dataclass
class Checkpoints:
    """`<checkpoints>/<epoch>/` folders and their record. `identity` names the data and arguments they come from."""

    folder: Path
    identity: str
    epochs: list[dict[str, Any]] = field(default_factory=list)

    def restore(self) -> str | None:
        """Read the record and delete every folder that it does not vouch for; returns what was given up, in words.

        Epochs after the newest intact folder are forgotten, since they have to be trained again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        record = read_json(self._record_path) if self._record_path.exists() else None
        warning = None
        if record and record["identity"] == self.identity:
            self.epochs = record["epochs"]
        elif record or self._numbered():
            warning = f"the checkpoints in {self.folder} come from other data or settings: training starts again"
        intact = [epoch["epoch"] for epoch in self.epochs if self._is_intact(epoch)]
        newest = max(intact, default=-1)
        if self.epochs and newest < self.epochs[-1]["epoch"]:
            warning = f"checkpoint {self.epochs[-1]['epoch']} in {self.folder} is damaged: going on after {newest}"
        self.epochs = [epoch for epoch in self.epochs if epoch["epoch"] <= newest]
        self._delete_all_but(intact)
        shutil.rmtree(self.folder / "interrupted", ignore_errors=True)
        for path in self.folder.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()
        self._save()
        return warning

    def add(self, epoch: dict[str, Any]) -> None:
        """Record a validated epoch for good, then delete those that are neither the newest nor the best."""
        path = self.path(epoch["epoch"])
        files = {file.name: file.stat().st_size for file in path.iterdir() if file.name != WRITTEN_AFTER_VALIDATION}
        for name in files:
            _flush_to_disk(path / name)
        _flush_to_disk(path)
        self.epochs.append({**epoch, "files": files})
        self._save()
        self._delete_all_but({epoch["epoch"], self.best["epoch"]})

    @property
    def best(self) -> dict[str, Any]:
        """The intact epoch with the longest estimated acceptance; the earlier one where two are equal."""
        intact = [epoch for epoch in self.epochs if self._is_intact(epoch)]
        return max(intact, key=lambda epoch: (epoch["simulated_acceptance_length"], -epoch["epoch"]))

    def path(self, epoch: int) -> Path:
        return self.folder / str(epoch)

    @property
    def _record_path(self) -> Path:
        return self.folder / "epochs.json"

    def _save(self) -> None:
        write_json(self._record_path, {"identity": self.identity, "epochs": self.epochs})

    def _is_intact(self, epoch: dict[str, Any]) -> bool:
        path = self.path(epoch["epoch"])
        return all(
            (path / name).is_file() and (path / name).stat().st_size == size for name, size in epoch["files"].items()
        )

    def _numbered(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.isdigit() and path.is_dir()]

    def _delete_all_but(self, epochs: Iterable[int]) -> None:
        kept = {str(epoch) for epoch in epochs}
        for path in self._numbered():
            if path.name not in kept:
                shutil.rmtree(path)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
