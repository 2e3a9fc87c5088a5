"""speculators' trainer as a child process whose text output becomes events and epoch records. Runs on the GPU host.

The output passes through to the job's log unchanged but for rich's padding.
"""

import ctypes
import fcntl
import math
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3.contract.event import EventWriter

LOG_COLUMNS = "4000"  # rich wraps a line of metrics at this width, and half a line says nothing
LEFTOVER_SECONDS = 180
PR_SET_PDEATHSIG = 1

_METRIC = re.compile(r"([A-Za-z]\w*(?:/\w+)*)=(-?(?:\d+(?:\.\d+)?(?:e[-+]\d+)?|inf|nan))(?=[,\s]|$)")
_FILLER = re.compile(r"([ ━])\1{2,}")  # rich pads each line and bar to the full width
_EPOCH = re.compile(r"(Training|Validation) epoch (\d+)/\d+ (started|completed)")
_PHASE_OF = {"Training": "training", "Validation": "validating"}


def parse_metrics(line: str) -> dict[str, float]:
    """The `name=value` pairs of one line of speculators' metric log."""
    return {name: float(value) for name, value in _METRIC.findall(line)}


@contextmanager
def sole_trainer(folder: Path, patience_seconds: float = LEFTOVER_SECONDS) -> Iterator[int]:
    """Hold the folder for one trainer; yields the lock's descriptor, which the trainer inherits and so holds too.

    A trainer that outlived its killed step is on its way out (it gets SIGTERM): wait for it.
    Raises RuntimeError when it does not go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"another trainer still holds {folder}/.lock after {patience_seconds} s: "
                        f"find it with `fuser {folder}/.lock` and stop it"
                    ) from None
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)


class TrainerProcess:
    """Runs the trainer and follows it.

    `total_steps` counts optimizer steps over all epochs. `epoch_done(record)` is called after each validation with
    `{epoch, train_loss, val_loss, full_acc, cond_acc, steps, seconds}`; epochs count from 0, `seconds` is the time in
    training steps, and accuracies are one a draft position.
    """

    def __init__(self, events: EventWriter, total_steps: int, epoch_done: Callable[[dict[str, Any]], None]) -> None:
        self._events = events
        self._total_steps = total_steps
        self._epoch_done = epoch_done
        self._losses: list[float] = []
        self._epoch_started = self._epoch_seconds = 0.0

    def run(self, command: list[str], lock: int) -> None:
        """Raises RuntimeError when the trainer fails, loses rows, or its loss is no longer a number."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": LOG_COLUMNS, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
            text=True,
            errors="replace",
            pass_fds=[lock],
            preexec_fn=_end_with_parent,
        )
        assert process.stdout
        last_lines: deque[str] = deque(maxlen=50)
        try:
            for line in process.stdout:
                line = _FILLER.sub(r"\1\1", line.rstrip())
                print(line, flush=True)
                last_lines.append(line)
                self._follow(line)
        except BaseException:
            _stop(process)
            raise
        process.wait()
        if process.returncode:
            decisive = next((line for line in reversed(last_lines) if re.search(r"\w(Error|Exception)\b", line)), "")
            raise RuntimeError(
                f"speculators' trainer ended with status {process.returncode}: "
                f"{decisive.strip() or 'no error line'}; its output is above in the job's log"
            )

    def _follow(self, line: str) -> None:
        if match := _EPOCH.search(line):
            kind, _, what = match.groups()
            if what == "started":
                self._events.phase(_PHASE_OF[kind])
                if kind == "Training":
                    self._losses, self._epoch_started = [], time.monotonic()
            elif kind == "Training":
                self._epoch_seconds = time.monotonic() - self._epoch_started
        elif "Saving checkpoint to" in line:
            self._events.phase("saving")
        elif "train/loss=" in line:
            self._after_step(parse_metrics(line))
        elif "val/loss_epoch=" in line:
            self._after_validation(parse_metrics(line))

    def _after_step(self, metrics: dict[str, float]) -> None:
        step = int(metrics["global_step"]) + 1
        if metrics["train/error_records"]:
            raise RuntimeError(
                f"the trainer dropped rows at step {step} (their states do not match their tokens, see its warnings "
                "above): run verify_hidden_states, then extract_hidden_states again"
            )
        if not math.isfinite(metrics["train/loss"]):
            raise RuntimeError(f"the training loss is {metrics['train/loss']} at step {step}: lower learning_rate")
        self._losses.append(metrics["train/loss"])
        self._events.progress(step, self._total_steps, "steps")

    def _after_validation(self, metrics: dict[str, float]) -> None:
        positions = range(sum(name.startswith("val/full_acc_") for name in metrics))
        record = {
            "epoch": int(metrics["epoch"]),
            "train_loss": round(sum(self._losses) / len(self._losses), 4),
            "val_loss": metrics["val/loss_epoch"],
            "full_acc": [metrics[f"val/full_acc_{position}_epoch"] for position in positions],
            "cond_acc": [metrics[f"val/cond_acc_{position}_epoch"] for position in positions],
            "steps": len(self._losses),
            "seconds": round(self._epoch_seconds, 2),
        }
        self._epoch_done(record)


def _stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM first: torchrun takes its ranks along only then."""
    process.terminate()
    try:
        process.communicate(timeout=LEFTOVER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """In the child: SIGTERM when the step dies, so that a killed step leaves no trainer behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
