"""A look at a job that stands still: what its processes do, whether they read, where Python is, what the GPUs do.

Stdlib only, Python 3.9 or later.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

from eagle3.remote import gpu_samples, nvidia_smi
from eagle3.remote.job_folder import Json
from eagle3.remote.processes import members, stat_fields

LOOK_SECONDS = 2.0
STACK_SECONDS = 10.0
MAX_PROCESSES = 12
MAX_STACKS = 2
MAX_STACK_LINES = 8


def look(job_dir: Path, session: Optional[int]) -> Json:
    """`processes`: pid, name, state, waits_in, cores, read_bytes_per_second, the busiest first; `gpus` or `error` as in
    gpu_samples where there are any; `stack` of the busiest one where py-spy is installed."""
    before = {pid: _used(pid) for pid in members(job_dir, session)}
    time.sleep(LOOK_SECONDS)
    processes: list[dict[str, Any]] = []
    for pid, (cpu_before, read_before) in before.items():
        fields = stat_fields(pid)
        if fields is None:
            continue
        cpu, read = _used(pid)
        processes.append(
            {
                "pid": pid,
                "name": _name(pid),
                "state": fields[0].decode(),
                "waits_in": _read(pid, "wchan").strip("0") or None,
                "cores": round((cpu - cpu_before) / LOOK_SECONDS, 2),
                "read_bytes_per_second": round((read - read_before) / LOOK_SECONDS),
            }
        )
    processes.sort(key=lambda process: (process["cores"], process["read_bytes_per_second"]), reverse=True)
    found: Json = {"processes": processes[:MAX_PROCESSES], "stack": _stack(processes)}
    return {**found, **gpu_samples.sample()} if nvidia_smi.is_present() else found


def _used(pid: int) -> tuple[float, int]:
    """Seconds of CPU and bytes from disk so far (0 where the host does not tell)."""
    fields = stat_fields(pid)
    seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
    for line in _read(pid, "io").splitlines():
        if line.startswith("read_bytes:"):
            return seconds, int(line.split()[1])
    return seconds, 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _name(pid: int) -> str:
    """vLLM gives its processes names such as VLLM::Worker_TP0."""
    words = _read(pid, "cmdline").replace("\0", " ").split()
    module = words[words.index("-m") + 1 : words.index("-m") + 3] if "-m" in words[:-1] else words[:1]
    return " ".join(module)[:60] or _read(pid, "comm").strip()


def _stack(processes: list[dict[str, Any]]) -> Optional[str]:
    beside_python = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
    if py_spy is None:
        return None
    for process in processes[:MAX_STACKS]:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [py_spy, "dump", "--nonblocking", "--pid", str(process["pid"])]
            ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=STACK_SECONDS)
            frames = [line.strip() for line in ended.stdout.splitlines() if line.startswith("    ")]
            if frames:
                return " < ".join(frames[:MAX_STACK_LINES])
    return None
