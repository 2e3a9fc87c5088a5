"""Jobs on a real SSH server while everything around them is killed at random: is any lost, does any run twice?

`make soak`: for each job two workers, as on two machines, launch it, watch it, and launch it again when it fails.
Prints what was started and killed, and how many jobs were lost (never finished, or told a success that is not theirs)
or doubled (two processes of one job at once, or one more after its success was told). Exit status 1 unless both are 0.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from worker import connect, job_named, told_path

from eagle3.gpu_host.code_bundle import code_bundle

SLOTS = 3
WORKERS = 2  # for each job
KILL_EVERY_SECONDS = (0.2, 0.8)
DRAIN_SECONDS = 150.0  # for what is under way when the killing ends; a launch that was cut takes 30 s to be noticed
WORKER, JOB = (str(Path(__file__).resolve().with_name(name)) for name in ("worker.py", "job.py"))


def kinds_of_process(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Everything that may be killed: its kind, and the process."""
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) not in command:
            continue
        for kind, words in {
            "worker": WORKER,
            "job": JOB,
            "SSH server": "eagle3.demo.ssh_server",
            "supervisor": "eagle3.remote.supervise ",
            "launch": "eagle3.remote.supervisor launch",
            "follower": "eagle3.remote.supervisor follow",
        }.items():
            if words in command and "/bin/sh" not in command and not command.startswith("env "):
                yield kind, process


def kill_something(folder: Path, kills: Counter[str]) -> None:
    by_kind: dict[str, list[psutil.Process]] = {}
    for kind, process in kinds_of_process(folder):
        by_kind.setdefault(kind, []).append(process)
    if by_kind:
        kind = random.choice(sorted(by_kind))
        with contextlib.suppress(psutil.NoSuchProcess):
            random.choice(by_kind[kind]).send_signal(signal.SIGKILL)
            kills[kind] += 1


class Soak:
    """The machines around the jobs, which start again whatever was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills: Counter[str] = Counter()
        self.started: list[str] = []
        self.finished: list[str] = []
        self._slots: dict[int, dict[int, subprocess.Popen[bytes]]] = {slot: {} for slot in range(SLOTS)}
        self._jobs: dict[int, str] = {}
        self._ssh: subprocess.Popen[bytes] | None = None
        python = folder / "python"
        python.write_text(
            f'#!/bin/bash\nif [ "$1 $2" = "-m eagle3.remote" ]; then exec {sys.executable} {JOB} {folder}; fi\n'
            f'exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)

    def keep_up(self) -> None:
        if self._ssh is None or self._ssh.poll() is not None:
            command = [sys.executable, "-m", "eagle3.demo.ssh_server", str(self.folder / "ssh")]
            self._ssh = subprocess.Popen(command)

    async def bring_code(self) -> None:
        while not (self.folder / "ssh" / "port").exists():
            await asyncio.sleep(0.1)
        async with connect(self.folder) as shell:
            job = job_named(self.folder, "any")
            unpacked = await shell.run(code_bundle().unpack_command(job.code_dir, job.host_python))
            unpacked.require_success("unpacking", "host")

    def turn(self, begin_jobs: bool) -> bool:
        """Start what is due; False when nothing is under way."""
        self.keep_up()
        for slot, workers in self._slots.items():
            job_id = self._jobs.get(slot)
            if job_id and all(told_path(self.folder, job_id, worker).exists() for worker in range(WORKERS)):
                self.finished.append(job_id)
                del self._jobs[slot]
                job_id = None
            if job_id is None and begin_jobs:
                job_id = self._jobs[slot] = f"job-{len(self.started)}"
                self.started.append(job_id)
            if job_id is None:
                continue
            for worker in range(WORKERS):
                ended = worker not in workers or workers[worker].poll() is not None
                if ended and not told_path(self.folder, job_id, worker).exists():
                    command = [sys.executable, WORKER, str(self.folder), job_id, str(worker)]
                    workers[worker] = subprocess.Popen(command)
        return bool(self._jobs)

    def verdict(self) -> dict[str, Any]:
        records = self.folder / "records"
        done = {job_id for job_id in self.started if (records / job_id / "done").exists()}
        lost = [job_id for job_id in self.started if job_id not in self.finished or job_id not in done]
        doubled = [job_id for job_id in self.started if (records / job_id / "doubled").exists()]
        return {"started": len(self.started), "kills": dict(self.kills), "lost": lost, "doubled": doubled}

    def orphans(self) -> list[int]:
        """Live processes that carry the marker of one of our jobs."""
        marker, found = f"EAGLE3_JOB_DIR={self.folder}".encode(), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if marker in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(process.pid)
        return found

    def end(self) -> None:
        if self._ssh:
            self._ssh.kill()
            self._ssh.wait()
        for workers in self._slots.values():
            for worker in workers.values():
                worker.kill()
                worker.wait()


async def soak(seconds: float, folder: Path) -> int:
    machines = Soak(folder)
    machines.keep_up()
    await machines.bring_code()
    end, next_kill = time.monotonic() + seconds, time.monotonic() + 2
    while time.monotonic() < end:
        machines.turn(begin_jobs=True)
        if time.monotonic() > next_kill:
            kill_something(folder, machines.kills)
            next_kill = time.monotonic() + random.uniform(*KILL_EVERY_SECONDS)
        await asyncio.sleep(0.05)
    end = time.monotonic() + DRAIN_SECONDS
    while machines.turn(begin_jobs=False) and time.monotonic() < end:
        await asyncio.sleep(0.05)
    await asyncio.sleep(3)  # a supervisor ends what its job left behind
    orphans = machines.orphans()
    machines.end()
    verdict = machines.verdict()
    kills = ", ".join(f"{number} {kind}" for kind, number in sorted(verdict["kills"].items()))
    print(f"jobs started: {verdict['started']}, killed: {sum(verdict['kills'].values())} ({kills})")
    print(f"lost: {len(verdict['lost'])}, doubled: {len(verdict['doubled'])}, processes left: {len(orphans)}")
    bad = verdict["lost"] or verdict["doubled"] or orphans
    if bad:
        print(f"look into {folder}: {verdict['lost']} {verdict['doubled']} {orphans}")
    else:
        shutil.rmtree(folder)
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--seed", type=int, help="of the killing; what it hits depends on the machine too")
    options = parser.parse_args()
    random.seed(options.seed)
    return asyncio.run(soak(options.seconds, Path(tempfile.mkdtemp(prefix="eagle3-soak-"))))


if __name__ == "__main__":
    sys.exit(main())
