"""The host's supervisor where the disk is full, the clock jumps, or next to nothing is installed: rows 15, 16, 22."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize("fills", ["log", "events.jsonl", "state.json"])
def test_a_full_disk_is_the_verdict_and_nothing_is_corrupt(make_supervisor, small_disk, fills):
    """Row 15. Seen to fail without the file `reserve` (no exit file), and without `_record_end` looking at the disk."""
    supervisor, job_dir = make_supervisor(), small_disk / "j"
    fill = {
        "log": "while echo a line of the log that fills the disk; do :; done",
        "events.jsonl": 'while echo \'{"v": 1, "kind": "metric"}\' >> $EAGLE3_JOB_DIR/events.jsonl; do :; done',
        # the payload's own files fill it while the heartbeat is due
        "state.json": f"cat /dev/zero > {small_disk}/rows; sleep 6",
    }[fills]
    supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", f"{fill}; exit 1"]})
    state = supervisor.wait_for_end(job_dir)
    assert (state["status"], state["reason"], state["exit_code"]) == ("exited", "disk_full", 1)
    assert all(json.loads(path.read_text()) for path in job_dir.glob("*.json")), "a half-written file"
    supervisor.poll(job_dir)

    (job_dir / "log").write_bytes(b"")
    (job_dir / "events.jsonl").write_bytes(b"")
    (small_disk / "rows").unlink(missing_ok=True)
    supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", "exit 0"]})
    assert supervisor.wait_for_end(job_dir)["exit_code"] == 0, "a retry after making room"


def test_launching_on_a_full_disk_says_so_and_keeps_what_was_known(make_supervisor, small_disk):
    """Row 15, before the start. Seen to fail with job.json written in place instead of aside."""
    supervisor, job_dir = make_supervisor(), small_disk / "j"
    supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", "exit 7"]})
    supervisor.wait_for_end(job_dir)
    subprocess.run(["bash", "-c", f"cat /dev/zero > {small_disk}/rows"], capture_output=True, check=False)
    (job_dir / "reserve").unlink()
    subprocess.run(["bash", "-c", f"cat /dev/zero > {small_disk}/more"], capture_output=True, check=False)
    answer = supervisor.run("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", "exit 0"]})
    assert answer.returncode != 0
    assert b"No space left on device" in answer.stderr
    assert supervisor.ask("state", job_dir)["job_id"] == "j"


@pytest.fixture(scope="session")
def wrong_clock(tmp_path_factory) -> str:
    """The library that moves a process's wall clock."""
    library = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return str(library)


@pytest.mark.parametrize("jump", [3600, -3600, 400 * 86_400])
def test_a_clock_that_jumps_moves_no_duration(make_supervisor, tmp_path, wrong_clock, jump):
    """Row 16. Seen to fail with `time.time()` in place of `boottime()` and for the maximum run time."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    faked = {"LD_PRELOAD": wrong_clock, "WRONG_CLOCK": str(clock)}
    supervisor, job_dir = make_supervisor(**faked), tmp_path / "j"
    script = f"date +%s; echo {jump} > {clock}; date +%s; sleep 6"
    job = {"job_id": "j", "argv": ["bash", "-c", script], "max_runtime_seconds": 60}
    supervisor.ask("launch", job_dir, job=job)
    before, after = (int(line) for line in wait_for_lines(job_dir / "log", 2))
    assert abs(after - before) > 3000, "the clock did not jump"
    assert supervisor.ask("state", job_dir)["status"] == "running"
    state = supervisor.wait_for_end(job_dir)
    assert (state["exit_code"], state["reason"]) == (0, None)
    assert 6 <= state["seconds"] < 12


def wait_for_lines(path: Path, number: int) -> list[str]:
    deadline = time.monotonic() + 10
    while not path.exists() or len(lines := path.read_text().splitlines()) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return lines


def old_python() -> str | None:
    """A Python 3.9, wherever this machine has one."""
    candidates = [shutil.which("python3.9"), *Path("~/.pyenv/versions").expanduser().glob("3.9.*/bin/python3.9")]
    for candidate in filter(None, candidates):
        probe = [str(candidate), "-c", "import sys; print(sys.executable if sys.version_info[:2] == (3, 9) else '')"]
        found = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip()
        if found:
            return found
    return None


def test_a_host_with_nothing_but_an_old_python_keeps_jobs(make_supervisor, tmp_path):
    """Row 22: no setsid, no flock, no bash, Python 3.9. Seen to fail with `int | None` in place of `Optional[int]`, and
    with the child started by `setsid`."""
    python = old_python()
    if python is None:
        pytest.skip("there is no Python 3.9 here")
    supervisor, job_dir = make_supervisor(python, PATH=str(tmp_path / "empty")), tmp_path / "j"
    lock = {"gpu_lock": str(tmp_path / "gpu.lock")}
    sleep = [python, "-c", "import time; time.sleep(300)"]
    answer = supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": sleep, **lock})
    assert (answer["launched"], answer["status"]) == (True, "running")
    assert supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": sleep, **lock})["launched"] is False
    supervisor.poll(job_dir)
    assert supervisor.ask("kill", job_dir, "--grace-seconds", "1")["reason"] == "killed"


def test_a_step_under_an_old_python_says_which_one_it_needs(repo_root, tmp_path):
    """Row 22. Seen to fail without the check in `contract/__init__.py`: `cannot import name 'StrEnum'`."""
    python = old_python()
    if python is None:
        pytest.skip("there is no Python 3.9 here")
    command = [python, "-m", "eagle3.remote", "preflight", "--run-dir", str(tmp_path)]
    step = subprocess.run(
        command, env={"PYTHONPATH": str(repo_root / "include")}, capture_output=True, text=True, check=False
    )
    assert step.returncode != 0
    assert "needs Python 3.11 or later, and this is 3.9" in step.stderr
    assert "host_python" in step.stderr
