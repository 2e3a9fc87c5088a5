"""A job's folder on the GPU host, which is the truth: job.json, state.json, log, events.jsonl, exit.json.

Stdlib only, Python 3.9 or later.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from eagle3.remote.processes import boot_id, boottime, is_alive

ALIVE = ("starting", "waiting", "running")  # statuses of a job that is not over
START_SECONDS = 30.0
POLL_MAX_BYTES = 1 << 20

Json = dict[str, Any]


def read(path: Path) -> Json:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def write(path: Path, value: Json) -> None:
    write_bytes(path, json.dumps(value).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Aside, fsync, rename: nobody ever reads half a file."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Somebody else holds it right now."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def read_state(job_dir: Path) -> Json:
    """What is known of the job: `status` is none, starting, waiting, running, exited or vanished.

    `exited` has exit_code or signal, and `reason` (killed, max_runtime) where the supervisor ended it.
    """
    job = read(job_dir / "job.json")
    if not job:
        return {"status": "none"}
    state: Json = {"job_id": job["job_id"], "attempt": job["attempt"], "clear_number": job.get("clear_number", 0)}
    # exit.json is looked for after state.json, so that a job that ends in between is not taken for a vanished one
    recorded = read(job_dir / "state.json")
    ended = read(job_dir / "exit.json")
    state.update(recorded)
    if ended:
        return {**state, **ended, "status": "exited"}
    if recorded.get("boot_id", boot_id()) != boot_id():
        return {**state, "status": "vanished", "reason": "reboot"}
    supervised = is_own_supervisor_alive(recorded)
    if is_alive(recorded.get("pid"), recorded.get("start_ticks")):
        return {**state, "status": "running", "supervised": supervised}
    if supervised:  # it waits for GPUs, or is writing down how the child ended
        return {**state, "supervised": True}
    if not recorded and 0 <= boottime() - job["launched_boottime"] < START_SECONDS:
        return {**state, "status": "starting"}
    ended = read(job_dir / "exit.json")  # it may have been written while we looked at the processes
    if ended:
        return {**state, **ended, "status": "exited"}
    return {**state, "status": "vanished", "reason": "no_exit_file"}


def is_own_supervisor_alive(recorded: Json) -> bool:
    """The supervisor that wrote state.json; after a boot its number is somebody else's."""
    same_boot = recorded.get("boot_id") == boot_id()
    return same_boot and is_alive(recorded.get("supervisor_pid"), recorded.get("supervisor_start_ticks"))


def read_from(path: Path, offset: int, inode: Optional[int] = None) -> tuple[bytes, int, os.stat_result]:
    """New bytes, where they begin, and the file's stat; from 0 when the file is another one or was truncated."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            if offset > stat.st_size or inode not in (None, stat.st_ino):
                offset = 0
            file.seek(offset)
            return file.read(POLL_MAX_BYTES), offset, stat
    except FileNotFoundError:
        return b"", 0, os.stat_result([0] * 10)
