"""Reading speculators' text, and one trainer at a time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3.remote.trainer_process import parse_metrics, sole_trainer

# As speculators 0.9.0 prints it through rich.
VALIDATION_LINE = (
    "[14:58:28] INFO  val/loss_0_epoch=2.518, val/full_acc_0_epoch=0.236, val/cond_acc_0_epoch=0.236, "
    "val/full_acc_1_epoch=9.80e-04, val/loss_epoch=nan, epoch=2  trainer.py:671"
)


def test_metrics_of_a_line() -> None:
    metrics = parse_metrics(VALIDATION_LINE)
    assert metrics["val/full_acc_0_epoch"] == 0.236
    assert metrics["val/full_acc_1_epoch"] == 9.8e-4
    assert metrics["epoch"] == 2
    assert metrics["val/loss_epoch"] != metrics["val/loss_epoch"]  # not a number


def test_text_without_metrics_gives_none() -> None:
    assert parse_metrics("INFO  Validation epoch 3/3 completed, see path=/a/b=c  trainer.py:756") == {}


def test_a_leftover_trainer_is_waited_for(tmp_path: Path) -> None:
    with sole_trainer(tmp_path) as lock:
        leftover = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], pass_fds=[lock])
    started = time.monotonic()
    with sole_trainer(tmp_path):
        assert time.monotonic() - started > 0.3
        assert leftover.wait(timeout=5) == 0


def test_a_leftover_trainer_that_stays_is_an_error(tmp_path: Path) -> None:
    with sole_trainer(tmp_path), pytest.raises(RuntimeError, match="another trainer still holds"):  # noqa: SIM117
        with sole_trainer(tmp_path, patience_seconds=0.3):
            pass
