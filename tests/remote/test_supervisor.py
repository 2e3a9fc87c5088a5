"""The host's supervisor, driven as the control side drives it: its command line, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SUPERVISOR = [sys.executable, "-m", "eagle3.remote.supervisor"]


@pytest.fixture
def supervisor(repo_root: Path):
    """Runs a verb; returns its answer."""
    os.environ["PYTHONPATH"] = str(repo_root / "include")

    def call(verb: str, job_dir: Path, *options: str, job: dict[str, Any] | None = None) -> dict[str, Any]:
        command = [*SUPERVISOR, verb, str(job_dir), *options]
        answer = subprocess.run(command, input=json.dumps(job).encode(), capture_output=True, check=True, timeout=60)
        return json.loads(answer.stdout.split(b"\n")[0])

    return call


@pytest.fixture
def bash(supervisor, tmp_path: Path):
    """Launches a bash script as job `j` and returns its folder."""
    job_dir = tmp_path / "jobs" / "j"

    def launch(script: str, **job: Any) -> Path:
        supervisor("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", script], **job})
        return job_dir

    launch.folder = tmp_path
    yield launch
    if job_dir.exists():
        supervisor("kill", job_dir, "--grace-seconds", "0")


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is dead."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(supervisor, job_dir: Path, seconds: float = 20) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while (state := supervisor("state", job_dir))["status"] in ("starting", "waiting", "running"):
        assert time.monotonic() < deadline, f"still {state}"
        time.sleep(0.1)
    return state


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
    state = wait_for_end(supervisor, bash(script))
    assert state["status"] == "exited"
    assert {name: state.get(name) for name in expected} == expected


def test_a_command_that_does_not_exist_is_an_ending_too(supervisor, tmp_path):
    job_dir = tmp_path / "j"
    supervisor("launch", job_dir, job={"job_id": "j", "argv": ["/no/such/program"]})
    assert wait_for_end(supervisor, job_dir)["exit_code"] == 127
    assert "/no/such/program" in (job_dir / "log").read_text()


def test_a_second_launch_attaches_and_two_at_once_start_one_job(supervisor, bash, tmp_path):
    job_dir = bash("echo started >> ../starts; sleep 30")
    script = ["bash", "-c", "echo started >> ../starts; sleep 30"]
    job = {"job_id": "j", "argv": script}
    assert supervisor("launch", job_dir, job=job)["launched"] is False

    other = tmp_path / "jobs" / "other"
    payload = json.dumps({"job_id": "other", "argv": ["bash", "-c", f"echo x >> {tmp_path}/starts; sleep 30"]}).encode()
    command = [*SUPERVISOR, "launch", str(other)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    answers = [json.loads(racer.communicate(payload)[0]) for racer in racers]
    assert sorted(answer["launched"] for answer in answers) == [False, False, False, True]
    assert (tmp_path / "starts").read_text() == "x\n"
    supervisor("kill", other, "--grace-seconds", "0")


def test_a_finished_job_is_accepted_a_failed_one_starts_again(supervisor, bash):
    job_dir = bash("exit 0")
    wait_for_end(supervisor, job_dir)
    bash("exit 5")
    assert supervisor("state", job_dir)["exit_code"] == 0, "a finished job was run again"
    bash("exit 5", clear_number=1)
    assert wait_for_end(supervisor, job_dir)["exit_code"] == 5
    bash("exit 0", clear_number=1)
    state = wait_for_end(supervisor, job_dir)
    assert (state["exit_code"], state["attempt"]) == (0, 3)


def test_clear_ends_the_old_job_before_the_new_one_starts(supervisor, bash, tmp_path):
    job_dir = bash(f"echo $$ > {tmp_path}/old; sleep 60 & sleep 60")
    old = supervisor("state", job_dir)["pid"]
    bash("sleep 60", clear_number=1)
    state = supervisor("state", job_dir)
    assert state["status"] == "running"
    assert state["pid"] != old
    assert not is_alive(old)


def test_kill_ends_the_whole_tree_and_nothing_that_a_later_clear_started(supervisor, bash, tmp_path):
    # one ignores TERM, one is a grandchild, one left the session
    children = f"(trap '' TERM; echo $BASHPID >> {tmp_path}/pids; exec sleep 300) & "
    children += f"setsid bash -c 'echo $$ >> {tmp_path}/pids; sleep 300' & wait"
    job_dir = bash(children, clear_number=2)
    deadline = time.monotonic() + 10
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert supervisor("kill", job_dir, "--clear-number", "1")["killed"] is False
    assert supervisor("state", job_dir)["status"] == "running"
    answer = supervisor("kill", job_dir, "--clear-number", "2", "--grace-seconds", "1")
    assert (answer["killed"], answer["left"], answer["status"], answer["reason"]) == (True, [], "exited", "killed")
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if is_alive(int(pid))]


@pytest.mark.parametrize(("last_words", "exit_code"), [("null", 0), ('{"type": "E", "message": "m"}', 1), (None, None)])
def test_a_child_whose_supervisor_was_killed_is_adopted(supervisor, bash, last_words, exit_code):
    say = f"""echo '{{"v": 1, "kind": "finished", "error": {last_words}}}' >> $EAGLE3_JOB_DIR/events.jsonl"""
    job_dir = bash(f"while [ ! -e go ]; do sleep 0.1; done; {say if last_words else ''}", cwd=str(bash.folder))
    state = supervisor("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while poll(job_dir)[0]["state"].get("supervisor_pid") == state["supervisor_pid"]:
        assert time.monotonic() < deadline, "nobody took the child over"
        time.sleep(0.1)
    adopted = supervisor("state", job_dir)
    assert (adopted["pid"], adopted["supervised"], adopted["attempt"]) == (state["pid"], True, 1)
    (bash.folder / "go").touch()
    ended = wait_for_end(supervisor, job_dir)
    assert (ended["exit_code"], ended["adopted"]) == (exit_code, True)


def test_the_maximum_run_time_holds_for_an_adopted_child(supervisor, bash):
    job_dir = bash("sleep 300", max_runtime_seconds=3)
    os.kill(supervisor("state", job_dir)["supervisor_pid"], signal.SIGKILL)
    poll(job_dir)
    assert wait_for_end(supervisor, job_dir, seconds=30)["reason"] == "max_runtime"


def test_both_gone_without_an_exit_file_is_vanished(supervisor, bash):
    job_dir = bash("sleep 300")
    state = supervisor("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    assert supervisor("state", job_dir)["status"] == "running", "the child is alive"
    os.kill(state["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while supervisor("state", job_dir)["status"] == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert supervisor("state", job_dir)["status"] == "vanished"


def test_a_reboot_is_seen(supervisor, bash):
    job_dir = bash("sleep 300")
    state = json.loads((job_dir / "state.json").read_text())
    os.kill(state["supervisor_pid"], signal.SIGSTOP)  # it must not write its heartbeat over ours
    (job_dir / "state.json").write_text(json.dumps({**state, "boot_id": "another boot"}))
    seen = supervisor("state", job_dir)
    os.kill(state["supervisor_pid"], signal.SIGCONT)
    assert (seen["status"], seen["reason"]) == ("vanished", "reboot")


def test_a_stranger_who_got_the_pid_is_left_alone(supervisor, bash):
    job_dir = bash("exit 1")
    wait_for_end(supervisor, job_dir)
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        state = json.loads((job_dir / "state.json").read_text())
        reused = {**state, "pid": stranger.pid, "session": stranger.pid}  # its start time stays the job's
        (job_dir / "state.json").write_text(json.dumps(reused))
        supervisor("kill", job_dir, "--grace-seconds", "0")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_maximum_run_time_is_kept_without_anybody_watching(supervisor, bash):
    state = wait_for_end(supervisor, bash("sleep 300", max_runtime_seconds=1), seconds=30)
    assert (state["reason"], state["signal"]) == ("max_runtime", 15)


def test_gpu_lock_is_waited_for_and_names_its_holder(supervisor, bash, tmp_path):
    lock = str(tmp_path / "gpu.lock")
    holder = tmp_path / "jobs" / "holder"
    supervisor("launch", holder, job={"job_id": "holder", "argv": ["sleep", "300"], "gpu_lock": lock})
    job_dir = bash("exit 0", gpu_lock=lock)
    state = supervisor("state", job_dir)
    assert (state["status"], state["waiting_for"]) == ("waiting", "holder")
    supervisor("kill", holder, "--grace-seconds", "0")
    assert wait_for_end(supervisor, job_dir)["exit_code"] == 0


def test_the_launcher_does_not_hand_its_own_marker_to_the_job(supervisor, bash, tmp_path):
    """A step that starts the server must not take the server along when it ends."""
    inner = tmp_path / "jobs" / "inner"
    payload = json.dumps({"job_id": "inner", "argv": ["sleep", "300"]})
    outer = bash(f"echo '{payload}' | {' '.join(SUPERVISOR)} launch {inner}")
    assert wait_for_end(supervisor, outer)["exit_code"] == 0
    assert supervisor("state", inner)["status"] == "running"
    supervisor("kill", inner, "--grace-seconds", "0")


def poll(job_dir: Path, **seen: Any) -> tuple[dict[str, Any], bytes]:
    """The header of the answer, and the bytes behind it."""
    command = [*SUPERVISOR, "poll", str(job_dir), "--seen", json.dumps(seen)]
    _, header, content = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\n", 2)
    return json.loads(header), content


def test_poll_brings_every_byte_once_across_attempts(supervisor, bash):
    job_dir = bash("printf 'a\\xff\\0b'; sleep 0.3; printf tail; exit 1")
    wait_for_end(supervisor, job_dir)
    header, whole = poll(job_dir)
    assert whole == b"a\xff\0btail"
    inode = header["log"]["inode"]
    assert poll(job_dir, log_offset=4, log_inode=inode, attempt=1)[1] == b"tail"
    bash("echo second")
    wait_for_end(supervisor, job_dir)
    assert poll(job_dir, log_offset=4, log_inode=inode, attempt=1)[1] == b"second\n", "offsets of another attempt"
    assert (job_dir / "log.1").read_bytes() == b"a\xff\0btail"


def test_poll_notices_a_log_that_was_rotated_truncated_or_deleted(supervisor, bash):
    job_dir = bash("echo old line; exit 1")
    wait_for_end(supervisor, job_dir)
    header, _ = poll(job_dir)
    seen = {"attempt": 1, "log_offset": header["log"]["size"], "log_inode": header["log"]["inode"]}
    (job_dir / "log").rename(job_dir / "log.rotated")
    (job_dir / "log").write_text("a new and longer line\n")
    assert poll(job_dir, **seen)[1] == b"a new and longer line\n"
    (job_dir / "log").write_text("short\n")
    assert poll(job_dir, **{**seen, "log_inode": None, "log_offset": 22})[1] == b"short\n"
    (job_dir / "log").unlink()
    assert poll(job_dir, **seen)[1] == b""
