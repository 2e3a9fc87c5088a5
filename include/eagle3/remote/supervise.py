"""The process that keeps one job: `python3 -m eagle3.remote.supervise JOB_DIR start|adopt ATTEMPT`.

Started by supervisor.py, which may be in a hurry: of several for one job, the first to hold its lock is the one.

Stdlib only, Python 3.9 or later.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

from eagle3.remote.gpu_samples import keep_sampling
from eagle3.remote.job_folder import POLL_MAX_BYTES, Json, read, read_from, read_state, write
from eagle3.remote.processes import (
    GRACE_SECONDS,
    JOB_DIR_VARIABLE,
    boot_id,
    boottime,
    end_members,
    is_alive,
    own_session,
    start_ticks,
)

HEARTBEAT_SECONDS = 5.0
FULL_DISK_BYTES = 1 << 20


def supervise(job_dir: Path, purpose: str, attempt: int) -> None:
    """One child in its own session, a heartbeat, and an exit file in every case.

    `start` starts the child; `adopt` takes over the one that an earlier supervisor left behind when it was killed. Ends
    at once when the job is another's, has gone on to another attempt, or has no child to adopt.
    """
    only_one = os.open(job_dir / "supervisor.lock", os.O_WRONLY | os.O_CREAT, 0o644)  # held until this process ends
    try:
        fcntl.flock(only_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    job, state = read(job_dir / "job.json"), read_state(job_dir)
    if state["attempt"] != attempt or state["status"] != {"start": "starting", "adopt": "running"}[purpose]:
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    own: Json = {
        "supervisor_pid": os.getpid(),
        "supervisor_start_ticks": start_ticks(os.getpid()),
        "boot_id": boot_id(),
    }
    child: Optional[subprocess.Popen[bytes]] = None
    running: Json = {**read(job_dir / "state.json"), **own}
    if purpose == "start":
        lock = _wait_for_gpus(job_dir, job, own)
        started = {"started_at": time.time(), "started_boottime": boottime()}
        try:
            child = _start_child(job_dir, job, lock)
        except OSError as error:
            with open(job_dir / "log", "ab") as log:
                log.write(f"cannot start {job['argv'][0]}: {error}\n".encode())
            return _record_end(job_dir, started, {"exit_code": 127})
        pid = child.pid
        running = {**own, **started, "status": "running", "pid": pid, "start_ticks": start_ticks(pid), "session": pid}
    keep_sampling(job_dir)
    reason = _watch(job_dir, job.get("max_runtime_seconds"), running, child)
    end_members(job_dir, own_session(running), GRACE_SECONDS)
    _record_end(job_dir, running, _ending(job_dir, child), reason)


def _start_child(job_dir: Path, job: Json, lock: Optional[int]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **job.get("env", {}), JOB_DIR_VARIABLE: str(job_dir), "PYTHONUNBUFFERED": "1"}
    with open(job_dir / "log", "ab") as log:
        return subprocess.Popen(
            job["argv"],
            cwd=job.get("cwd"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock] if lock is not None else [],  # the lock lives as long as any process of the job
        )


def _watch(
    job_dir: Path, limit_seconds: Optional[float], running: Json, child: "Optional[subprocess.Popen[bytes]]"
) -> Optional[str]:
    """Until the child ends; the reason, where it was this supervisor that ended it."""
    reason = None
    while True:
        # A full disk costs the heartbeat, never the job.
        with contextlib.suppress(OSError):
            write(job_dir / "state.json", {**running, "heartbeat_at": time.time()})
        deadline = time.monotonic() + HEARTBEAT_SECONDS
        while time.monotonic() < deadline:
            if child is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=HEARTBEAT_SECONDS)
                    return reason
            elif is_alive(running["pid"], running["start_ticks"]):
                time.sleep(0.2)
            else:
                return reason
        if limit_seconds and boottime() - running["started_boottime"] > limit_seconds:
            reason = "max_runtime"
            end_members(job_dir, own_session(running), GRACE_SECONDS)


def _ending(job_dir: Path, child: "Optional[subprocess.Popen[bytes]]") -> Json:
    """Exit code or signal. An adopted child is not ours to ask: its own last event tells, or nothing does."""
    if child is not None:
        code = child.returncode
        return {"exit_code": code} if code >= 0 else {"signal": -code}
    path = job_dir / "events.jsonl"
    size = path.stat().st_size if path.exists() else 0
    events, _, _ = read_from(path, max(0, size - POLL_MAX_BYTES))
    with contextlib.suppress(ValueError, IndexError, AttributeError):
        last = json.loads(events.splitlines()[-1])
        if last.get("kind") == "finished":
            return {"exit_code": 1 if last.get("error") else 0, "adopted": True}
    return {"exit_code": None, "adopted": True}


def _record_end(job_dir: Path, started: Json, ended: Json, reason: Optional[str] = None) -> None:
    """The exit file, on a full disk too: the room that was kept for it is given up first."""
    if (job_dir / "kill.json").exists():
        reason = "killed"
    elif ended.get("exit_code") != 0 and reason is None and shutil.disk_usage(job_dir).free < FULL_DISK_BYTES:
        reason = "disk_full"
    seconds = round(boottime() - started["started_boottime"], 3)
    while True:
        try:
            write(job_dir / "exit.json", {**ended, "reason": reason, "seconds": seconds, "ended_at": time.time()})
            return
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                (job_dir / "reserve").unlink()
            time.sleep(1)


def _wait_for_gpus(job_dir: Path, job: Json, own: Json) -> Optional[int]:
    """Hold the host's GPU lock, which names its holder. The descriptor is handed to the child."""
    if not job.get("gpu_lock"):
        return None
    descriptor = os.open(job["gpu_lock"], os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace")
            if (job_dir / "kill.json").exists():
                _record_end(job_dir, {"started_boottime": boottime()}, {"signal": int(signal.SIGTERM)})
                sys.exit()
            write(job_dir / "state.json", {**own, "status": "waiting", "waiting_for": holder})
            time.sleep(1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, job["job_id"].encode(), 0)
    return descriptor


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
