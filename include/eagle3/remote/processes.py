"""Who is alive on the GPU host: the processes of a job, by start time, boot, session and marker.

Stdlib only, Python 3.9 or later.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any, Optional

GRACE_SECONDS = 20.0
JOB_DIR_VARIABLE = "EAGLE3_JOB_DIR"  # in the environment of every process of a job


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime() -> float:
    """Seconds since boot: what durations are measured with, whatever happens to the host's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_ticks(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def stat_fields(pid: int) -> Optional[list[bytes]]:
    """/proc/PID/stat from its third field (state) on; the second may hold spaces and parentheses."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].split()


def is_alive(pid: Optional[int], ticks: Optional[int]) -> bool:
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def own_session(state: dict[str, Any]) -> Optional[int]:
    """The job's session, unless the host was booted or another process got the number since."""
    session = state.get("session")
    if session is None or state.get("boot_id") != boot_id():
        return None
    return session if start_ticks(session) in (None, state["start_ticks"]) else None


def members(job_dir: Path, session: Optional[int]) -> list[int]:
    """Every live process of the job: its session, and whoever left the session but carries its marker."""
    marker = f"{JOB_DIR_VARIABLE}={job_dir}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        fields = stat_fields(pid)
        if fields is None or fields[0] in (b"Z", b"X"):
            continue
        if session is not None and int(fields[3]) == session:
            found.append(pid)
            continue
        try:
            if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # another user's process, or gone meanwhile
    return found


def end_members(job_dir: Path, session: Optional[int], grace_seconds: float) -> list[int]:
    """TERM, wait, KILL. Returns who is left (nobody, unless the kernel holds them)."""
    deadline = time.monotonic() + grace_seconds
    send_signal(members(job_dir, session), signal.SIGTERM)
    while members(job_dir, session) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(50):
        left = members(job_dir, session)
        if not left:
            return []
        send_signal(left, signal.SIGKILL)
        time.sleep(0.1)
    return members(job_dir, session)


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
