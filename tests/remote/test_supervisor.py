"""The host's supervisor, driven as the control side drives it: its command line, with real processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is dead."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", {"exit_code": 0}),
        ("exit 3", {"exit_code": 3}),
        ("exec false", {"exit_code": 1}),
        ("set -e; false; echo not reached", {"exit_code": 1}),
        ("kill -9 $$", {"signal": 9}),
        ("kill -SEGV $$", {"signal": 11}),
    ],
)
def test_every_ending_leaves_an_exit_file(supervisor, bash, script, expected):
    """Row 1. Seen to fail without `_record_end`, and with the exit code kept for a signal."""
    state = supervisor.wait_for_end(bash(script))
    assert state["status"] == "exited"
    assert {name: state.get(name) for name in expected} == expected


def test_a_command_that_does_not_exist_is_an_ending_too(supervisor, tmp_path):
    """Row 1. Seen to fail when the supervisor does not catch what starting its child raises."""
    job_dir = tmp_path / "j"
    supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["/no/such/program"]})
    assert supervisor.wait_for_end(job_dir)["exit_code"] == 127
    assert "/no/such/program" in (job_dir / "log").read_text()


def test_a_second_launch_attaches_and_two_at_once_start_one_job(supervisor, bash, tmp_path):
    """Row 13. Seen to fail without the lock around `launch`."""
    job = {"job_id": "j", "argv": ["bash", "-c", "sleep 30"]}
    assert supervisor.ask("launch", bash("sleep 30"), job=job)["launched"] is False

    other, go = tmp_path / "jobs" / "other", tmp_path / "go"
    job = {"job_id": "other", "argv": ["bash", "-c", f"echo x >> {tmp_path}/starts; sleep 30"]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    at_once = (
        "import os, sys, time\nfrom eagle3.remote.supervisor import main\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.001)\n"
        f"sys.argv = ['supervisor', 'launch', {str(other)!r}]\nmain()"
    )
    racers = []
    for _ in range(8):
        with open(tmp_path / "job.json") as payload:
            racers.append(subprocess.Popen([sys.executable, "-c", at_once], stdin=payload, stdout=subprocess.PIPE))
    time.sleep(1)
    go.touch()
    answers = [json.loads(racer.communicate()[0]) for racer in racers]
    assert sorted(answer["launched"] for answer in answers) == [False] * 7 + [True]
    assert (tmp_path / "starts").read_text() == "x\n"
    supervisor.ask("kill", other, "--grace-seconds", "0")


def test_a_finished_job_is_accepted_a_failed_one_starts_again(supervisor, bash):
    """Row 11. Seen to fail when `launch` does not look whether the job finished."""
    job_dir = bash("exit 0")
    supervisor.wait_for_end(job_dir)
    bash("exit 5")
    assert supervisor.ask("state", job_dir)["exit_code"] == 0, "a finished job was run again"
    bash("exit 5", clear_number=1)
    assert supervisor.wait_for_end(job_dir)["exit_code"] == 5
    bash("exit 0", clear_number=1)
    state = supervisor.wait_for_end(job_dir)
    assert (state["exit_code"], state["attempt"]) == (0, 3)


def test_clear_ends_the_old_job_before_the_new_one_starts(supervisor, bash):
    """Row 12. Seen to fail when `launch` does not end what is left of the last attempt."""
    job_dir = bash("sleep 60 & sleep 60")
    old = supervisor.ask("state", job_dir)["pid"]
    bash("sleep 60", clear_number=1)
    state = supervisor.ask("state", job_dir)
    assert state["status"] == "running"
    assert state["pid"] != old
    assert not is_alive(old)


def test_kill_ends_the_whole_tree_and_nothing_that_a_later_clear_started(supervisor, bash, tmp_path):
    """Row 12: one ignores TERM, one is a grandchild, one left the session. Seen to fail without the KILL after TERM,
    without the marker (the one that left), and without the comparison of clear numbers."""
    children = f"(trap '' TERM; echo $BASHPID >> {tmp_path}/pids; exec sleep 300) & "
    children += f"setsid bash -c 'echo $$ >> {tmp_path}/pids; sleep 300' & wait"
    job_dir = bash(children, clear_number=2)
    deadline = time.monotonic() + 10
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert supervisor.ask("kill", job_dir, "--clear-number", "1")["killed"] is False
    assert supervisor.ask("state", job_dir)["status"] == "running"
    answer = supervisor.ask("kill", job_dir, "--clear-number", "2", "--grace-seconds", "1")
    assert (answer["killed"], answer["left"], answer["status"], answer["reason"]) == (True, [], "exited", "killed")
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if is_alive(int(pid))]


def test_a_stranger_who_got_the_pid_is_left_alone(supervisor, bash):
    """Row 12. Seen to fail when `own_session` does not compare start times."""
    job_dir = bash("exit 1")
    supervisor.wait_for_end(job_dir)
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        state = json.loads((job_dir / "state.json").read_text())
        reused = {**state, "pid": stranger.pid, "session": stranger.pid}  # its start time stays the job's
        (job_dir / "state.json").write_text(json.dumps(reused))
        supervisor.ask("kill", job_dir, "--grace-seconds", "0")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_maximum_run_time_is_kept_without_anybody_watching(supervisor, bash):
    """Row 18. Seen to fail without the comparison in `_watch`."""
    state = supervisor.wait_for_end(bash("sleep 300", max_runtime_seconds=1), seconds=30)
    assert (state["reason"], state["signal"]) == ("max_runtime", 15)


def test_gpu_lock_is_waited_for_names_its_holder_and_survives_nobody(supervisor, bash, tmp_path):
    """Row 14. Seen to fail without `_wait_for_gpus`, and with a lock that the supervisor keeps to itself."""
    lock = str(tmp_path / "gpu.lock")
    holder = tmp_path / "jobs" / "holder"
    supervisor.ask("launch", holder, job={"job_id": "holder", "argv": ["sleep", "300"], "gpu_lock": lock})
    state = supervisor.ask("state", holder)
    subprocess.run(["kill", "-9", str(state["supervisor_pid"])], check=True)  # its child still has the GPUs
    job_dir = bash("exit 0", gpu_lock=lock)
    waiting = supervisor.ask("state", job_dir)
    assert (waiting["status"], waiting["waiting_for"]) == ("waiting", "holder")
    subprocess.run(["kill", "-9", str(state["pid"])], check=True)
    assert supervisor.wait_for_end(job_dir)["exit_code"] == 0


def test_the_launcher_does_not_hand_its_own_marker_to_the_job(supervisor, bash, tmp_path):
    """A step that starts the server must not take the server along when it ends."""
    inner = tmp_path / "jobs" / "inner"
    payload = json.dumps({"job_id": "inner", "argv": ["sleep", "300"]})
    outer = bash(f"echo '{payload}' | {sys.executable} -m eagle3.remote.supervisor launch {inner}")
    assert supervisor.wait_for_end(outer)["exit_code"] == 0
    assert supervisor.ask("state", inner)["status"] == "running"
    supervisor.ask("kill", inner, "--grace-seconds", "0")
