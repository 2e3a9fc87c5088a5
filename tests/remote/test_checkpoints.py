"""Which checkpoints count, which is the best, which are deleted."""

from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import read_json
from eagle3.remote.checkpoints import Checkpoints


def written_by_trainer(folder: Path, epoch: int) -> None:
    (folder / str(epoch)).mkdir(parents=True)
    (folder / str(epoch) / "model.safetensors").write_bytes(b"weights" * (epoch + 1))
    (folder / str(epoch) / "optimizer_state_dict.pt").write_bytes(b"moments")
    (folder / f"epoch{epoch}_end").symlink_to(str(epoch))


def validated(checkpoints: Checkpoints, epoch: int, acceptance: float, val_loss: float = 1.0) -> None:
    written_by_trainer(checkpoints.folder, epoch)
    checkpoints.add({"epoch": epoch, "simulated_acceptance_length": acceptance, "val_loss": val_loss})


def folders(checkpoints: Checkpoints) -> set[str]:
    return {path.name for path in checkpoints.folder.iterdir() if path.is_dir() and not path.is_symlink()}


def restored(folder: Path, identity: str = "same") -> tuple[Checkpoints, str | None]:
    checkpoints = Checkpoints(folder, identity)
    return checkpoints, checkpoints.restore()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    found, warning = restored(tmp_path / "checkpoints")
    assert warning is None
    return found


def test_best_is_by_acceptance_even_when_the_loss_still_falls(checkpoints: Checkpoints) -> None:
    for epoch, (acceptance, loss) in enumerate([(1.2, 3.0), (1.5, 2.0), (1.4, 1.0), (1.5, 0.5)]):
        validated(checkpoints, epoch, acceptance, loss)
    assert checkpoints.best["epoch"] == 1


def test_only_the_newest_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for epoch, acceptance in enumerate([1.2, 1.5, 1.4, 1.3]):
        validated(checkpoints, epoch, acceptance)
    assert folders(checkpoints) == {"1", "3"}
    again, warning = restored(checkpoints.folder)
    assert warning is None
    assert [epoch["epoch"] for epoch in again.epochs] == [0, 1, 2, 3]
    assert again.best["epoch"] == 1


def test_a_folder_that_was_never_validated_is_deleted(checkpoints: Checkpoints) -> None:
    validated(checkpoints, 0, 1.2)
    written_by_trainer(checkpoints.folder, 1)
    (checkpoints.folder / "interrupted").mkdir()
    again, _ = restored(checkpoints.folder)
    assert [epoch["epoch"] for epoch in again.epochs] == [0]
    assert folders(again) == {"0"}
    assert not (again.folder / "epoch1_end").is_symlink()


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_newest_checkpoint_is_trained_again(checkpoints: Checkpoints, damage: str) -> None:
    for epoch, acceptance in enumerate([1.5, 1.4, 1.3]):
        validated(checkpoints, epoch, acceptance)
    weights = checkpoints.path(2) / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(b"half")
    again, warning = restored(checkpoints.folder)
    assert warning is not None
    assert "damaged" in warning
    assert [epoch["epoch"] for epoch in again.epochs] == [0]
    assert folders(again) == {"0"}


def test_checkpoints_of_other_data_are_not_continued(checkpoints: Checkpoints) -> None:
    validated(checkpoints, 0, 1.5)
    again, warning = restored(checkpoints.folder, identity="other")
    assert warning is not None
    assert "training starts again" in warning
    assert again.epochs == []
    assert folders(again) == set()
    record: dict[str, Any] = read_json(again.folder / "epochs.json")
    assert record == {"identity": "other", "epochs": []}


def test_numbered_folders_without_a_record_are_not_trusted(tmp_path: Path) -> None:
    written_by_trainer(tmp_path, 7)
    found, warning = restored(tmp_path)
    assert warning is not None
    assert folders(found) == set()
