"""The supervisor, its child or the whole host is gone: rows 2, 3, 4."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize(("last_words", "exit_code"), [("null", 0), ('{"type": "E", "message": "m"}', 1), (None, None)])
def test_a_child_whose_supervisor_was_killed_is_adopted(supervisor, bash, tmp_path, last_words, exit_code):
    """Row 2. Seen to fail when `poll` starts no supervisor for a running child that has none."""
    say = f"""echo '{{"v": 1, "kind": "finished", "error": {last_words}}}' >> $EAGLE3_JOB_DIR/events.jsonl"""
    job_dir = bash(f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; {say if last_words else ''}")
    state = supervisor.ask("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while supervisor.poll(job_dir)[0]["state"].get("supervisor_pid") == state["supervisor_pid"]:
        assert time.monotonic() < deadline, "nobody took the child over"
        time.sleep(0.1)
    adopted = supervisor.ask("state", job_dir)
    assert (adopted["pid"], adopted["supervised"], adopted["attempt"]) == (state["pid"], True, 1)
    (tmp_path / "go").touch()
    ended = supervisor.wait_for_end(job_dir)
    assert (ended["exit_code"], ended["adopted"]) == (exit_code, True)


def test_many_polls_at_once_start_one_supervisor(supervisor, bash, tmp_path):
    """Row 2, with many watchers. Seen to fail without the supervisor's lock."""
    job_dir = bash("sleep 300")
    state = supervisor.ask("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    poll = [sys.executable, "-m", "eagle3.remote.supervisor", "poll", str(job_dir)]
    for poller in [subprocess.Popen(poll, stdout=subprocess.DEVNULL) for _ in range(8)]:
        assert poller.wait(30) == 0
    time.sleep(1)
    listed = subprocess.run(["pgrep", "-f", f"supervise {job_dir}"], capture_output=True, text=True, check=False)
    assert len(listed.stdout.split()) == 1
    assert supervisor.ask("state", job_dir)["pid"] == state["pid"]


def test_the_maximum_run_time_holds_for_an_adopted_child(supervisor, bash):
    """Rows 2 and 18. Seen to fail when an adopted child's run time is measured from its adoption."""
    job_dir = bash("sleep 300", max_runtime_seconds=6)
    began = time.monotonic()
    os.kill(supervisor.ask("state", job_dir)["supervisor_pid"], signal.SIGKILL)
    time.sleep(4)
    supervisor.poll(job_dir)
    assert supervisor.wait_for_end(job_dir, seconds=30)["reason"] == "max_runtime"
    assert time.monotonic() - began < 12  # it is looked at every five seconds


def test_both_gone_without_an_exit_file_is_vanished(supervisor, bash):
    """Row 3. Seen to fail when a recorded process counts as alive."""
    job_dir = bash("sleep 300")
    state = supervisor.ask("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    assert supervisor.ask("state", job_dir)["status"] == "running", "the child is alive"
    os.kill(state["pid"], signal.SIGKILL)
    ended = supervisor.wait_for_end(job_dir, seconds=5)
    assert (ended["status"], ended["reason"]) == ("vanished", "no_exit_file")


def test_a_reboot_is_seen_and_a_retry_starts_again(supervisor, bash, tmp_path):
    """Row 4. Seen to fail without the comparison of boot ids: the recorded numbers are strangers' now,
    here this test's own, and the retry ends them."""
    resumable = f"if [ -e {tmp_path}/half ]; then echo resumed; else touch {tmp_path}/half; sleep 300; fi"
    job_dir = bash(resumable)
    state = json.loads((job_dir / "state.json").read_text())
    for pid in (state["supervisor_pid"], state["pid"]):  # the power goes off
        os.kill(pid, signal.SIGKILL)
    stranger = {"pid": os.getpid(), "supervisor_pid": os.getpid()}  # after the boot, the numbers begin anew
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    reboot = {**state, **stranger, "boot_id": "another boot", "start_ticks": ticks, "supervisor_start_ticks": ticks}
    (job_dir / "state.json").write_text(json.dumps(reboot))
    seen = supervisor.ask("state", job_dir)
    assert (seen["status"], seen["reason"]) == ("vanished", "reboot")
    bash(resumable)
    again = supervisor.wait_for_end(job_dir)
    assert (again["exit_code"], again["attempt"]) == (0, 2)
    assert (job_dir / "log").read_text() == "resumed\n"
