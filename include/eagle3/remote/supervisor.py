"""What the control side asks of the GPU host: launch, relaunch, state, list, poll, follow, kill, put.

By hand, in the folder of the run's code: `python3 -m eagle3.remote.supervisor state|kill JOB_DIR`.
Stdlib only, Python 3.9 or later.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from eagle3.remote.gpu_samples import last_sample
from eagle3.remote.job_folder import (
    ALIVE,
    START_SECONDS,
    Json,
    is_locked,
    is_own_supervisor_alive,
    locked,
    read,
    read_from,
    read_state,
    write,
    write_bytes,
)
from eagle3.remote.processes import (
    GRACE_SECONDS,
    JOB_DIR_VARIABLE,
    boottime,
    end_members,
    own_session,
    send_signal,
)
from eagle3.remote.standstill import look

RESERVE_BYTES = 1 << 16  # kept in each job folder, so that a full disk does not hide how the job ended
FOLLOW_IDLE_SECONDS = 900  # a follower that nobody asks any more (its connection died without a word) ends itself


def launch(job_dir: Path, job: Json) -> Json:
    """Start the job unless it runs already or is done; returns its state with `launched` true or false.

    `job`: job_id, argv, and optionally env, cwd, clear_number, max_runtime_seconds, gpu_lock (path of a lock to hold),
    restart_finished (a job that exited with 0 is started again). A larger clear_number than the recorded one means
    "again": what still runs is ended first. Two launches at once: one starts, the other attaches.
    """
    job_dir = job_dir.resolve()
    job_dir.mkdir(parents=True, exist_ok=True)
    with locked(job_dir / "launch.lock"):
        state = read_state(job_dir)
        again = job.get("clear_number", 0) > state.get("clear_number", 0)
        alive = state["status"] in ALIVE
        finished = state["status"] == "exited" and state.get("exit_code") == 0
        if not again and (alive or (finished and not job.get("restart_finished"))):
            return {**state, "launched": False}
        left = end_members(job_dir, own_session(state), GRACE_SECONDS)
        if left:
            raise SystemExit(f"cannot start {job['job_id']}: processes {left} of its last attempt cannot be ended")
        _end_supervisor(job_dir, state)
        attempt = state.get("attempt", 0) + 1
        if attempt > 1:
            for name in ("log", "events.jsonl", "gpus.jsonl"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(job_dir / name, job_dir / f"{name}.{attempt - 1}")
        for name in ("state.json", "exit.json", "kill.json"):
            with contextlib.suppress(FileNotFoundError):
                (job_dir / name).unlink()
        write_bytes(job_dir / "reserve", b"\0" * RESERVE_BYTES)
        write(job_dir / "job.json", {**job, "attempt": attempt, "launched_boottime": boottime()})
        _start_supervisor(job_dir, "start", attempt)
        deadline = time.monotonic() + START_SECONDS
        while read_state(job_dir)["status"] == "starting" and time.monotonic() < deadline:
            time.sleep(0.05)
        return {**read_state(job_dir), "launched": True}


def _end_supervisor(job_dir: Path, state: Json) -> None:
    """Its job is over; it must not write that ending into the next attempt's folder."""
    deadline = time.monotonic() + 5
    while is_locked(job_dir / "supervisor.lock"):
        if time.monotonic() > deadline:
            if not is_own_supervisor_alive(state):
                raise SystemExit(f"cannot start {job_dir.name}: another supervisor of it is starting; try again")
            send_signal([state["supervisor_pid"]], signal.SIGKILL)
        time.sleep(0.02)


def _start_supervisor(job_dir: Path, purpose: str, attempt: int) -> None:
    # A fresh process without the marker of a job that launches another one, in a session that no terminal ends.
    environment = {name: value for name, value in os.environ.items() if name != JOB_DIR_VARIABLE}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with open(job_dir / "supervisor.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "eagle3.remote.supervise", str(job_dir), purpose, str(attempt)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def poll(job_dir: Path, seen: Json) -> bytes:
    """One JSON line (the state, sizes, how many bytes follow), then new log bytes, then new event bytes.

    `seen`: log_offset, log_inode, event_offset and attempt of the poll before. Offsets in an earlier attempt's files,
    in a log that was rotated away, or behind the end of a truncated one mean 0. With `look`, the answer tells also what
    the job's processes do (standstill.look); it takes seconds.
    """
    state = read_state(job_dir)
    if state["status"] == "running" and not state["supervised"]:
        with locked(job_dir / "launch.lock"):
            state = read_state(job_dir)
            if state["status"] == "running" and not state["supervised"]:
                _start_supervisor(job_dir, "adopt", state["attempt"])
    wants_look = seen.get("look", False)
    if state.get("attempt") != seen.get("attempt"):
        seen = {}
    log, log_offset, log_stat = read_from(job_dir / "log", seen.get("log_offset", 0), seen.get("log_inode"))
    events, event_offset, event_stat = read_from(job_dir / "events.jsonl", seen.get("event_offset", 0))
    header = {
        "state": state,
        "boottime": boottime(),
        "gpus": last_sample(job_dir),
        "standstill": look(job_dir, own_session(state)) if wants_look else None,
        "log": {"offset": log_offset, "num_bytes": len(log), "size": log_stat.st_size, "inode": log_stat.st_ino},
        "events": {"offset": event_offset, "num_bytes": len(events), "size": event_stat.st_size},
    }
    return json.dumps(header).encode() + b"\n" + log + events


def follow(job_dir: Path, questions: BinaryIO, answers: BinaryIO) -> None:
    """Many polls of one process: each line of `questions` is a `seen`; each answer is framed.

    Starting an interpreter costs a hundred times what a poll does; fifty watched jobs would need a core for it.
    """
    signal.alarm(FOLLOW_IDLE_SECONDS)
    for question in questions:
        signal.alarm(FOLLOW_IDLE_SECONDS)
        answers.write(framed(poll(job_dir, json.loads(question))))
        answers.flush()


def framed(answer: bytes) -> bytes:
    """The asker finds the answer's begin and end, whatever the host's login scripts print before it."""
    return b"eagle3 %d\n" % len(answer) + answer


def kill(job_dir: Path, grace_seconds: float = GRACE_SECONDS, clear_number: float = math.inf) -> Json:
    """End every process of the job, unless it was started by a later clear than `clear_number`."""
    job_dir = job_dir.resolve()
    state = read_state(job_dir)
    if state.get("clear_number", 0) > clear_number:
        return {**state, "killed": False}
    if state["status"] in ALIVE:
        write(job_dir / "kill.json", {"t": time.time()})
    left = end_members(job_dir, own_session(state), grace_seconds)
    deadline = time.monotonic() + 5
    while read_state(job_dir)["status"] in ALIVE and time.monotonic() < deadline:
        time.sleep(0.05)
    return {**read_state(job_dir), "killed": True, "left": left}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=["launch", "relaunch", "state", "list", "poll", "follow", "kill", "put"])
    parser.add_argument(
        "path", type=Path, help="the job folder (list: the folder of job folders; put: the file to write)"
    )
    parser.add_argument("--seen", type=json.loads, default={}, help="poll: where the last one ended, as JSON")
    parser.add_argument("--clear-number", type=int, help="kill: only what was started by this clear or an earlier one")
    parser.add_argument("--grace-seconds", type=float, default=GRACE_SECONDS)
    options = parser.parse_args()
    if options.verb == "launch":
        print(json.dumps(launch(options.path, json.load(sys.stdin))))
    elif options.verb == "relaunch":
        job = read(options.path / "job.json")
        if not job:
            raise SystemExit(f"no job was launched in {options.path}: clear the task that launches it")
        if options.clear_number is not None:
            job["clear_number"] = options.clear_number
        print(json.dumps(launch(options.path, job)))
    elif options.verb == "state":
        print(json.dumps(read_state(options.path)))
    elif options.verb == "list":
        print(json.dumps([read_state(path.parent) for path in sorted(options.path.glob("*/job.json"))]))
    elif options.verb == "poll":
        sys.stdout.buffer.write(framed(poll(options.path, options.seen)))
    elif options.verb == "follow":
        follow(options.path, sys.stdin.buffer, sys.stdout.buffer)
    elif options.verb == "kill":
        clear_number = math.inf if options.clear_number is None else options.clear_number
        print(json.dumps(kill(options.path, options.grace_seconds, clear_number)))
    else:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(options.path, sys.stdin.buffer.read())


if __name__ == "__main__":
    main()
