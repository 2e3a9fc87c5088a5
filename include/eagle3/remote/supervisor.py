"""Keeps one detached job on the GPU host: starts it, watches it, records its end. Stdlib only, Python 3.9 or later.

By hand: `python3 supervisor.py launch|state|poll|kill JOB_DIR` (launch reads the job as JSON from stdin).
The job folder is the truth: job.json, state.json, log, events.jsonl, exit.json. Nothing here lives in memory alone.
"""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

JOB_DIR_VARIABLE = "EAGLE3_JOB_DIR"
HEARTBEAT_SECONDS = 5.0
START_SECONDS = 30.0
GRACE_SECONDS = 20.0
POLL_MAX_BYTES = 1 << 20

Json = Dict[str, Any]


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def _stat_fields(pid: int) -> Optional[List[bytes]]:
    """/proc/PID/stat from its third field (state) on; the second may hold spaces and parentheses."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].split()


def _is_alive(pid: Optional[int], ticks: Optional[int]) -> bool:
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def own_session(state: Json) -> Optional[int]:
    """The job's session, unless the host was booted or another process got the number since."""
    session = state.get("session")
    if session is None or state.get("boot_id") != boot_id():
        return None
    return session if start_ticks(session) in (None, state["start_ticks"]) else None


def members(job_dir: Path, session: Optional[int]) -> List[int]:
    """Every live process of the job: its session, and whoever left the session but carries its marker."""
    marker = f"{JOB_DIR_VARIABLE}={job_dir}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        fields = _stat_fields(pid)
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


def end_members(job_dir: Path, session: Optional[int], grace_seconds: float) -> List[int]:
    """TERM, wait, KILL. Returns who is left (nobody, unless the kernel holds them)."""
    deadline = time.monotonic() + grace_seconds
    _signal(members(job_dir, session), signal.SIGTERM)
    while members(job_dir, session) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(50):
        left = members(job_dir, session)
        if not left:
            return []
        _signal(left, signal.SIGKILL)
        time.sleep(0.1)
    return members(job_dir, session)


def _signal(pids: List[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _read(path: Path) -> Json:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def _write(path: Path, value: Json) -> None:
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
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_state(job_dir: Path) -> Json:
    """What is known of the job: `status` is none, starting, waiting, running, exited or vanished.

    `exited` has exit_code or signal, and `reason` (killed, max_runtime) where the supervisor ended it.
    """
    job = _read(job_dir / "job.json")
    if not job:
        return {"status": "none"}
    state: Json = {"job_id": job["job_id"], "attempt": job["attempt"], "clear_number": job.get("clear_number", 0)}
    # exit.json is looked for after state.json, so that a job that ends in between is not taken for a vanished one
    recorded = _read(job_dir / "state.json")
    ended = _read(job_dir / "exit.json")
    state.update(recorded)
    if ended:
        return {**state, **ended, "status": "exited"}
    if recorded.get("boot_id", boot_id()) != boot_id():
        return {**state, "status": "vanished", "reason": "reboot"}
    supervised = _is_alive(recorded.get("supervisor_pid"), recorded.get("supervisor_start_ticks"))
    if _is_alive(recorded.get("pid"), recorded.get("start_ticks")):
        return {**state, "status": "running", "supervised": supervised}
    if supervised:
        return state
    if not recorded and time.time() - job["launched_at"] < START_SECONDS:
        return {**state, "status": "starting"}
    ended = _read(job_dir / "exit.json")  # it may have been written while we looked at the processes
    if ended:
        return {**state, **ended, "status": "exited"}
    return {**state, "status": "vanished", "reason": "no_exit_file"}


def launch(job_dir: Path, job: Json) -> Json:
    """Start the job unless it runs already or is done; returns its state with `launched` true or false.

    `job`: job_id, argv, and optionally env, cwd, clear_number, max_runtime_seconds, gpu_lock (path of a lock to hold),
    restart_finished (a job that exited with 0 is started again). A larger clear_number than the recorded one means
    "again": what still runs is ended first. Two launches at once: one starts, the other attaches.
    """
    job_dir = job_dir.resolve()
    job_dir.mkdir(parents=True, exist_ok=True)
    with _locked(job_dir / "launch.lock"):
        state = read_state(job_dir)
        again = job.get("clear_number", 0) > state.get("clear_number", 0)
        alive = state["status"] in ("starting", "waiting", "running")
        finished = state["status"] == "exited" and state.get("exit_code") == 0
        if not again and (alive or (finished and not job.get("restart_finished"))):
            return {**state, "launched": False}
        left = end_members(job_dir, own_session(state), GRACE_SECONDS)
        if left:
            raise SystemExit(f"cannot start {job['job_id']}: processes {left} of its last attempt cannot be ended")
        _end_supervisor(state)
        attempt = state.get("attempt", 0) + 1
        if attempt > 1:
            for name in ("log", "events.jsonl"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(job_dir / name, job_dir / f"{name}.{attempt - 1}")
        for name in ("state.json", "exit.json", "kill.json"):
            with contextlib.suppress(FileNotFoundError):
                (job_dir / name).unlink()
        _write(job_dir / "job.json", {**job, "attempt": attempt, "launched_at": time.time()})
        _start_supervisor(job_dir)
        deadline = time.monotonic() + START_SECONDS
        while read_state(job_dir)["status"] == "starting" and time.monotonic() < deadline:
            time.sleep(0.05)
        return {**read_state(job_dir), "launched": True}


def _end_supervisor(state: Json) -> None:
    """Its job is over; it must not write that ending into the next attempt's folder."""
    pid, ticks = state.get("supervisor_pid"), state.get("supervisor_start_ticks")
    deadline = time.monotonic() + 5
    while _is_alive(pid, ticks):
        if time.monotonic() > deadline:
            _signal([state["supervisor_pid"]], signal.SIGKILL)
        time.sleep(0.02)


def _start_supervisor(job_dir: Path) -> None:
    # A fresh process without the marker of a job that launches another one, in a session that no terminal ends.
    environment = {name: value for name, value in os.environ.items() if name != JOB_DIR_VARIABLE}
    with open(job_dir / "supervisor.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "supervise", str(job_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def poll(job_dir: Path, log_offset: int, event_offset: int, attempt: Optional[int], out: BinaryIO) -> None:
    """Write one JSON line (the state, sizes, how many bytes follow), then new log bytes, then new event bytes.

    Offsets that belong to another attempt, or lie behind the end of a truncated file, start at 0 again.
    """
    state = read_state(job_dir)
    if attempt is not None and state.get("attempt") != attempt:
        log_offset = event_offset = 0
    log, log_offset, log_size = _read_from(job_dir / "log", log_offset)
    events, event_offset, event_size = _read_from(job_dir / "events.jsonl", event_offset)
    header = {
        "state": state,
        "log": {"offset": log_offset, "num_bytes": len(log), "size": log_size},
        "events": {"offset": event_offset, "num_bytes": len(events), "size": event_size},
    }
    out.write(json.dumps(header).encode() + b"\n" + log + events)
    out.flush()


def _read_from(path: Path, offset: int) -> Tuple[bytes, int, int]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = offset if offset <= size else 0
            file.seek(offset)
            return file.read(POLL_MAX_BYTES), offset, size
    except FileNotFoundError:
        return b"", 0, 0


def kill(job_dir: Path, grace_seconds: float = GRACE_SECONDS, attempt: Optional[int] = None) -> Json:
    """End every process of the job; with `attempt`, only if that is still the current one."""
    job_dir = job_dir.resolve()
    state = read_state(job_dir)
    if attempt is not None and state.get("attempt") != attempt:
        return {**state, "killed": False}
    if state["status"] in ("starting", "waiting", "running"):
        _write(job_dir / "kill.json", {"t": time.time()})
    left = end_members(job_dir, own_session(state), grace_seconds)
    deadline = time.monotonic() + 5
    while read_state(job_dir)["status"] in ("starting", "waiting", "running") and time.monotonic() < deadline:
        time.sleep(0.05)
    return {**read_state(job_dir), "killed": True, "left": left}


def supervise(job_dir: Path) -> None:
    """The supervisor itself: one child in its own session, a heartbeat, and an exit file in every case."""
    job = _read(job_dir / "job.json")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    own: Json = {
        "supervisor_pid": os.getpid(),
        "supervisor_start_ticks": start_ticks(os.getpid()),
        "boot_id": boot_id(),
    }
    lock = _wait_for_gpus(job_dir, job, own)
    environment = {**os.environ, **job.get("env", {}), JOB_DIR_VARIABLE: str(job_dir), "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with open(job_dir / "log", "ab") as log:
        try:
            child = subprocess.Popen(
                job["argv"],
                cwd=job.get("cwd"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock] if lock is not None else [],  # the lock lives as long as any process of the job
            )
        except OSError as error:
            log.write(f"cannot start {job['argv'][0]}: {error}\n".encode())
            return _record_end(job_dir, {"exit_code": 127}, started)
    running = {
        **own,
        "status": "running",
        "pid": child.pid,
        "start_ticks": start_ticks(child.pid),
        "session": child.pid,
        "started_at": time.time(),
    }
    limit = job.get("max_runtime_seconds")
    reason = None
    while True:
        _write(job_dir / "state.json", {**running, "heartbeat_at": time.time()})
        try:
            child.wait(timeout=HEARTBEAT_SECONDS)
            break
        except subprocess.TimeoutExpired:
            if limit and time.monotonic() - started > limit:
                reason = "max_runtime"
                end_members(job_dir, child.pid, GRACE_SECONDS)
    end_members(job_dir, child.pid, GRACE_SECONDS)
    code = child.returncode
    _record_end(job_dir, {"exit_code": code} if code >= 0 else {"signal": -code}, started, reason)


def _record_end(job_dir: Path, ended: Json, started: float, reason: Optional[str] = None) -> None:
    """`started`: on the monotonic clock."""
    if (job_dir / "kill.json").exists():
        reason = "killed"
    seconds = round(time.monotonic() - started, 3)
    _write(job_dir / "exit.json", {**ended, "reason": reason, "seconds": seconds, "ended_at": time.time()})


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
                _record_end(job_dir, {"signal": int(signal.SIGTERM)}, time.monotonic())
                sys.exit()
            _write(job_dir / "state.json", {**own, "status": "waiting", "waiting_for": holder})
            time.sleep(1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, job["job_id"].encode(), 0)
    return descriptor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=["launch", "relaunch", "state", "poll", "kill", "put", "supervise"])
    parser.add_argument("path", type=Path, help="the job folder (put: the file to write from stdin)")
    parser.add_argument("--log-offset", type=int, default=0)
    parser.add_argument("--event-offset", type=int, default=0)
    parser.add_argument("--attempt", type=int)
    parser.add_argument("--grace-seconds", type=float, default=GRACE_SECONDS)
    options = parser.parse_args()
    if options.verb == "launch":
        print(json.dumps(launch(options.path, json.load(sys.stdin))))
    elif options.verb == "relaunch":
        print(json.dumps(launch(options.path, _read(options.path / "job.json"))))
    elif options.verb == "state":
        print(json.dumps(read_state(options.path)))
    elif options.verb == "poll":
        poll(options.path, options.log_offset, options.event_offset, options.attempt, sys.stdout.buffer)
    elif options.verb == "kill":
        print(json.dumps(kill(options.path, options.grace_seconds, options.attempt)))
    elif options.verb == "put":
        options.path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(options.path, sys.stdin.buffer.read())
    else:
        supervise(options.path)


if __name__ == "__main__":
    main()
