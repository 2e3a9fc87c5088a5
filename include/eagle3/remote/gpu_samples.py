"""How the host's GPUs do while a job runs: one line every ten seconds in `gpus.jsonl` beside the job's log.

`{"t", "up", "gpus": [{index, memory_used_mib, memory_total_mib, utilization, temperature, uncorrected_ecc}], "xids"}`,
or `{"t", "up", "error"}`; None for what a GPU does not tell. No file on a host without nvidia-smi.

Stdlib only, Python 3.9 or later.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Optional

from eagle3.remote import nvidia_smi
from eagle3.remote.job_folder import Json
from eagle3.remote.processes import boottime

SAMPLE_SECONDS = 10.0
KERNEL_LOG = Path("/dev/kmsg")
MAX_XIDS = 20
TAIL_BYTES = 64 * 1024
COLUMNS = {
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "utilization": "utilization.gpu",
    "temperature": "temperature.gpu",
    "uncorrected_ecc": "ecc.errors.uncorrected.volatile.total",
}


def keep_sampling(job_dir: Path) -> None:
    """From now on, in the background, until this process ends."""
    if nvidia_smi.is_present():
        threading.Thread(target=_sample_for_ever, args=(job_dir / "gpus.jsonl",), daemon=True).start()


def last_sample(job_dir: Path) -> Optional[Json]:
    """The newest whole line."""
    try:
        with open(job_dir / "gpus.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            *lines, _ = file.read().split(b"\n")
            return dict(json.loads(lines[-1]))
    except (FileNotFoundError, IndexError, ValueError):
        return None


def sample() -> Json:
    """`gpus`, or `error` when nvidia-smi fails: a GPU that fell off the bus makes it fail."""
    try:
        rows = nvidia_smi.query("gpu", ",".join(["index", *COLUMNS.values()]))
        return {"gpus": [{"index": int(row[0]), **dict(zip(COLUMNS, map(_number, row[1:])))} for row in rows]}
    except subprocess.CalledProcessError as error:
        return {"error": (error.stdout or error.stderr).strip()[-300:] or f"nvidia-smi ended with {error.returncode}"}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _number(cell: str) -> Optional[float]:
    try:
        return float(cell)
    except ValueError:  # [N/A], [Not Supported]
        return None


def _sample_for_ever(path: Path) -> None:
    kernel = _open_kernel_log()
    xids: list[str] = []
    while True:
        xids = [*xids, *_new_xids(kernel)][-MAX_XIDS:]
        line = {"t": round(time.time(), 3), "up": round(boottime(), 3), **sample(), "xids": xids}
        # a full disk costs a sample, never the supervisor
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")
        time.sleep(SAMPLE_SECONDS)


def _open_kernel_log() -> Optional[int]:
    """At its end; None where only root may read it."""
    try:
        kernel = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(kernel, 0, os.SEEK_END)
        return kernel
    except OSError:
        return None


def _new_xids(kernel: Optional[int]) -> list[str]:
    """`NVRM: Xid (PCI:0000:3b:00): 79, ...`: one record a read; EPIPE says that some were overwritten."""
    found: list[str] = []
    while kernel is not None:
        try:
            record = os.read(kernel, 8192)
        except BrokenPipeError:
            continue
        except OSError:
            break
        if not record:
            break
        text = record.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")
        if "NVRM: Xid" in text:
            found.append(text[:300])
    return found
