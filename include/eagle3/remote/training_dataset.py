"""The training rows as an Arrow dataset that speculators' trainer reads. Runs on the GPU host.

The trainer finds the states of dataset row i in `hs_<i>.safetensors`, so the dataset keeps the order of `read_rows`.
It trains on the first rows and validates on the last ones: whole rows, none in both.
"""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np

from eagle3.remote.dataset import Row

TRAIN_ROWS_RATIO = 0.9


def rows_hash(rows: list[Row]) -> str:
    """Identity of the rows (token ids and loss masks, in order): what is made from them carries it."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.int64(len(row.input_ids)).tobytes())
        digest.update(np.asarray(row.input_ids, dtype=np.int64).tobytes())
        digest.update(np.asarray(row.loss_mask, dtype=np.int8).tobytes())
    return digest.hexdigest()


def split_rows(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that are trained on and those for validation, by the trainer's own formula."""
    boundary = int(len(rows) * TRAIN_ROWS_RATIO)
    return rows[:boundary], rows[boundary:]


def write_dataset(rows: list[Row], dataset_dir: Path) -> None:
    """Write `{input_ids, loss_mask, seq_len}` rows, aside and renamed. Seconds of work, so it is never re-used."""
    from datasets import Dataset

    dataset = Dataset.from_dict(
        {
            "input_ids": [row.input_ids for row in rows],
            "loss_mask": [row.loss_mask for row in rows],
            "seq_len": [len(row.input_ids) for row in rows],
        }
    )
    dataset.set_format("torch")  # the trainer compares tensors
    aside = dataset_dir.with_name(f".{dataset_dir.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    dataset.save_to_disk(aside)
    if dataset_dir.exists():
        shutil.rmtree(dataset_dir)
    os.rename(aside, dataset_dir)
