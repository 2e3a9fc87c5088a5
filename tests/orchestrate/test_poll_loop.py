"""Watching a job through a connection that fails in every way, with a real SSH server and a real job in bash."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from eagle3.contract.errors import ConfigError
from eagle3.gpu_host.code_bundle import code_bundle
from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.gpu_host.shell import AsyncsshShell, Unreachable, is_refusal
from eagle3.orchestrate.poll_loop import Listener, poll_until_over
from eagle3.orchestrate.watch import JobWatch


class Line:
    """A telephone line to the SSH server: it can be cut, refuse, or go dead without a word."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: list[asyncio.StreamWriter] = []
        self._dead = False
        self.port = 0
        self.num_connections = 0

    async def up(self) -> None:
        self._dead = False
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Connections break, new ones are refused."""
        assert self._server
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def go_dead(self) -> None:
        """Nothing comes through any more, and nobody says so."""
        self._dead = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._open += [writer, server_writer]
        await asyncio.gather(self._copy(reader, server_writer), self._copy(server_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self._dead:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()


class Watched:
    """A scripted job and what its watching said."""

    def __init__(self, work_dir: Path, host: Any, scripted_python: Any) -> None:
        self.work_dir, self.host = work_dir, host
        self._scripted_python = scripted_python
        self.line = Line(host.port)
        self.told: list[str] = []
        self.shown: list[dict[str, Any]] = []

    @asynccontextmanager
    async def connect(self, known_hosts: bytes | None = None, timeout_seconds: float = 2):
        try:
            connection = await asyncio.wait_for(
                asyncssh.connect(
                    "127.0.0.1",
                    self.line.port,
                    username=self.host.login,
                    client_keys=[str(self.host.client_key)],
                    known_hosts=known_hosts or f"127.0.0.1 {self.host.host_key_line}".encode(),
                ),
                timeout_seconds,
            )
        except (OSError, TimeoutError, asyncssh.Error) as error:
            raise (ConfigError if is_refusal(error) else Unreachable)(str(error)) from error
        async with connection:
            yield AsyncsshShell(connection, "host", timeout_seconds=timeout_seconds)

    async def launch(self, script: str) -> None:
        python = str(self._scripted_python(self.work_dir / "python", script).path)
        self.job = RemoteJob("conn", str(self.work_dir), python, code_bundle().sha, "run", "run.preflight", "preflight")
        await self.line.up()
        async with self.connect() as shell:
            (await shell.run(code_bundle().unpack_command(self.job.code_dir, self.job.host_python))).require_success(
                "unpacking", "host"
            )
            (await shell.run(self.job.launch_command(0, 300.0, False))).require_success("launching", "host")

    async def watch(self, connect: Any = None, state: dict[str, Any] | None = None, unreachable_seconds: float = 60):
        async def show(progress: dict[str, Any]) -> None:
            self.shown.append(progress)

        async def keep(state: dict[str, Any]) -> None:
            self.kept = json.loads(json.dumps(state))

        self.watching = JobWatch(self.job, None, state)
        return await poll_until_over(
            self.watching, connect or self.connect, 0.2, unreachable_seconds, Listener(self.told.append, show, keep)
        )


@pytest.fixture
def watched(tmp_path, asyncssh_host, scripted_python):
    return Watched(tmp_path / "work", asyncssh_host, scripted_python)


async def test_one_connection_for_the_whole_job_and_the_end_of_the_log_is_delivered(watched):
    noise = "for i in $(seq 40000); do echo line $i of the log which is long enough to fill some megabytes; done"
    await watched.launch(
        f"{noise}; echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate'; {noise}; exit 1"
    )
    launched = watched.line.num_connections
    outcome = await watched.watch()
    assert watched.line.num_connections == launched + 1
    assert outcome["verdict"] == "failed"
    assert "CUDA out of memory" in outcome["message"]
    assert outcome["tail"][-1].startswith("line 40000 ")
    assert str(watched.job.job_dir) in outcome["message"]


@pytest.mark.parametrize("fault", ["cut", "dead"])
async def test_a_line_that_is_lost_for_a_while_costs_nothing(watched, fault):
    await watched.launch("echo one; sleep 8; echo two; finish")
    watching = asyncio.create_task(watched.watch())
    await asyncio.sleep(1.5)
    if fault == "cut":
        await watched.line.cut()
    else:
        watched.line.go_dead()
    await asyncio.sleep(4)
    assert any(line.startswith("unreachable for") for line in watched.told)
    if fault == "dead":
        await watched.line.cut()
    await watched.line.up()
    outcome = await asyncio.wait_for(watching, 30)
    assert (outcome["verdict"], outcome["result"]) == ("finished", {"a": 1})


async def test_giving_up_says_so_and_leaves_the_job_alone(watched):
    await watched.launch("sleep 60")
    watching = asyncio.create_task(watched.watch(unreachable_seconds=2))
    await asyncio.sleep(1)
    await watched.line.cut()
    outcome = await asyncio.wait_for(watching, 30)
    assert outcome["verdict"] == "unreachable"
    assert "untouched" in outcome["message"]
    await watched.line.up()
    async with watched.connect() as shell:
        answer = json.loads((await shell.run(watched.job.kill_command(0))).stdout)
    assert (answer["status"], answer["reason"]) == ("exited", "killed")


async def test_a_changed_host_key_fails_at_once(watched):
    await watched.launch("sleep 60")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh")
    started = time.monotonic()
    outcome = await watched.watch(connect=lambda: watched.connect(b"127.0.0.1 " + other))
    assert outcome["verdict"] == "refused"
    assert time.monotonic() - started < 5
    async with watched.connect() as shell:
        await shell.run(watched.job.kill_command(0))


async def test_another_watcher_goes_on_where_the_first_one_was(watched):
    """What a poke of the reschedule sensor does, and two triggerers on one job: nothing is told twice."""
    event = """{"v": 1, "up": %s, "kind": "progress", "done": %s, "total": 4, "unit": "rows"}"""
    progress = f"echo '{event}' >> $EAGLE3_JOB_DIR/events.jsonl"
    steps = "; sleep 1; ".join(progress % (n, n) for n in range(1, 5))
    await watched.launch(f"echo 'caf\u00e9 \u2588\u2588'; {steps}; sleep 1; finish")
    first = asyncio.create_task(watched.watch())
    await asyncio.sleep(2)
    state = json.loads(json.dumps(watched.watching.as_state()))
    first.cancel()
    before = len(watched.told)
    outcome = await watched.watch(state=state)
    assert outcome["verdict"] == "finished"
    assert watched.told.count("starting 1/4 rows (25 %)") <= 1
    assert len(watched.told) > before
    assert watched.shown[-1]["phase"] == "finished"


async def test_fifty_watchers_use_a_connection_each(watched):
    await watched.launch("sleep 10; finish")
    watchers = [Watched.__new__(Watched) for _ in range(50)]
    for watcher in watchers:
        watcher.__dict__ = {**watched.__dict__, "told": [], "shown": []}
    launched = watched.line.num_connections
    patient = partial(watched.connect, timeout_seconds=60)
    outcomes = await asyncio.gather(*(watcher.watch(connect=patient) for watcher in watchers))
    assert {outcome["verdict"] for outcome in outcomes} == {"finished"}
    assert watched.line.num_connections - launched == 50
