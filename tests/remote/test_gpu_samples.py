"""What the supervisor keeps of the GPUs, and a look at a job that stands still.

The stand-ins for nvidia-smi and py-spy refuse what the real ones would.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# `nvidia-smi --query-gpu=...` of a host with two H100; the second one does not tell its temperature
NVIDIA_SMI = """#!/bin/bash
[ -e "$(dirname "$0")/lost" ] && { echo "Unable to determine the device handle for GPU0: Unknown Error"; exit 15; }
query="--query-gpu=index,memory.used,memory.total,utilization.gpu,temperature.gpu,ecc.errors.uncorrected.volatile.total"
[ "$*" = "$query --format=csv,noheader,nounits" ] || { echo "Field is not valid: $*" >&2; exit 2; }
echo "0, 70011, 81559, 100, 64, 0"
echo "1, 70003, 81559, 100, [N/A], 0"
"""


@pytest.fixture
def on_path(tmp_path: Path) -> Callable[[str, str], Path]:
    """`on_path(name, script)` puts a program where PATH finds it first; returns the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
        return folder

    return put


@pytest.fixture
def launch(make_supervisor: Any, tmp_path: Path) -> Any:
    """`launch(script, folder)` starts a bash job on a host with that folder's programs."""
    job_dir, launched = tmp_path / "jobs" / "j", []

    def launch(script: str, programs: Path | None = None) -> tuple[Any, Path]:
        path = f"{programs}:{os.environ['PATH']}" if programs else os.environ["PATH"]
        supervisor = make_supervisor(PATH=path)
        supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", script]})
        launched.append(supervisor)
        return supervisor, job_dir

    yield launch
    for supervisor in launched:
        supervisor.ask("kill", job_dir, "--grace-seconds", "0")


def wait_for_sample(supervisor: Any, job_dir: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 15
    while (gpus := supervisor.poll(job_dir)[0]["gpus"]) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return gpus


def look(supervisor: Any, job_dir: Path) -> dict[str, Any]:
    return supervisor.poll(job_dir, look=True)[0]["standstill"]


def test_a_sample_of_the_gpus_lies_beside_the_log_and_comes_with_every_poll(launch: Any, on_path: Any) -> None:
    """Seen to fail without `keep_sampling` in the supervisor."""
    supervisor, job_dir = launch("sleep 300", on_path("nvidia-smi", NVIDIA_SMI))
    sample = wait_for_sample(supervisor, job_dir)
    assert sample == json.loads((job_dir / "gpus.jsonl").read_text().splitlines()[-1])
    expected = {"memory_used_mib": 70011, "memory_total_mib": 81559, "utilization": 100, "temperature": 64}
    assert sample["gpus"][0] == {"index": 0, **expected, "uncorrected_ecc": 0}
    assert sample["gpus"][1]["temperature"] is None
    assert sample["xids"] == []


def test_a_lost_gpu_is_in_the_sample(launch: Any, on_path: Any) -> None:
    programs = on_path("nvidia-smi", NVIDIA_SMI)
    (programs / "lost").touch()
    supervisor, job_dir = launch("sleep 300", programs)
    assert wait_for_sample(supervisor, job_dir)["error"].startswith("Unable to determine the device handle for GPU0")


def test_a_host_without_gpus_has_no_samples(launch: Any) -> None:
    supervisor, job_dir = launch("sleep 300")
    time.sleep(1)
    assert supervisor.poll(job_dir)[0]["gpus"] is None
    assert not (job_dir / "gpus.jsonl").exists()


def test_a_look_finds_who_computes_and_who_waits(launch: Any, on_path: Any) -> None:
    supervisor, job_dir = launch("sleep 300 & while :; do :; done", on_path("nvidia-smi", NVIDIA_SMI))
    assert supervisor.poll(job_dir)[0]["standstill"] is None
    found = look(supervisor, job_dir)
    busiest, waiting = found["processes"]
    assert (busiest["name"], waiting["name"]) == ("bash", "sleep")
    assert busiest["cores"] > 0.3
    assert (waiting["cores"], waiting["state"]) == (0, "S")
    assert [gpu["utilization"] for gpu in found["gpus"]] == [100, 100]


def test_a_look_measures_what_is_read_from_disk(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(64 << 20))
    os.sync()
    reading = f"while :; do dd if={tmp_path}/weights iflag=direct of=/dev/null bs=1M status=none || exit; done"
    supervisor, job_dir = launch(reading)
    assert sum(process["read_bytes_per_second"] for process in look(supervisor, job_dir)["processes"]) > 1e6


def test_where_py_spy_is_installed_the_stack_is_shown(launch: Any, on_path: Any) -> None:
    script = """#!/bin/bash
[ "$1 $2 $3" = "dump --nonblocking --pid" ] && kill -0 "$4" || exit 1
echo "Process $4: python -m eagle3.remote extract"
echo "Thread $4 (idle): \\"MainThread\\""
echo "    wait (threading.py:327)"
echo "    recv (shm_broadcast.py:512)"
"""
    supervisor, job_dir = launch("sleep 300", on_path("py-spy", script))
    assert look(supervisor, job_dir)["stack"] == "wait (threading.py:327) < recv (shm_broadcast.py:512)"
