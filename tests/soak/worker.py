"""A worker of the soak, `worker.py FOLDER JOB_ID NUMBER`: launches a job, watches it, and again until it is done."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh

from eagle3.contract.errors import ConfigError
from eagle3.demo.ssh_server import make_key, public_line
from eagle3.gpu_host.code_bundle import code_bundle
from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.gpu_host.shell import AsyncsshShell, Unreachable, is_refusal
from eagle3.orchestrate.poll_loop import Listener, poll_until_over
from eagle3.orchestrate.watch import JobWatch


def job_named(folder: Path, job_id: str) -> RemoteJob:
    return RemoteJob("", str(folder), str(folder / "python"), code_bundle().sha, "run", job_id, "report")


def told_path(folder: Path, job_id: str, worker: int) -> Path:
    """Exists when this worker was told the job's success."""
    return folder / f"{job_id}.told.{worker}"


@asynccontextmanager
async def connect(folder: Path):
    known_hosts = f"127.0.0.1 {public_line(make_key(folder / 'ssh' / 'host_key'))}".encode()
    try:
        connection = await asyncssh.connect(
            "127.0.0.1",
            int((folder / "ssh" / "port").read_text()),
            client_keys=[str(folder / "ssh" / "client_key")],
            known_hosts=known_hosts,
        )
    except (OSError, asyncssh.Error) as error:
        raise (ConfigError if is_refusal(error) else Unreachable)(str(error)) from error
    async with connection:
        yield AsyncsshShell(connection, "host", timeout_seconds=20)


async def work(folder: Path, job: RemoteJob, told: Path) -> None:
    async def ignore(_: dict[str, Any]) -> None:
        pass

    while True:
        try:
            async with connect(folder) as shell:
                launched = await shell.run(job.launch_command(0, 300.0, False))
        except Unreachable:
            await asyncio.sleep(0.2)
            continue
        if launched.exit_status != 0:  # the launcher was killed, say
            await asyncio.sleep(0.2)
            continue
        listener = Listener(lambda line: None, ignore, ignore)
        outcome = await poll_until_over(JobWatch(job, None), lambda: connect(folder), 0.2, 60, listener)
        if outcome["verdict"] == "finished":
            (folder / "records" / job.job_id / "told").touch()
            told.touch()
            return


if __name__ == "__main__":
    folder, job_id, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    asyncio.run(work(folder, job_named(folder, job_id), told_path(folder, job_id, number)))
