"""A job in bash that is watched through a line to the SSH server that can fail in every way."""

import asyncio
import json
from contextlib import asynccontextmanager
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
        self.python = self._scripted_python(self.work_dir / "python", script)
        python = str(self.python.path)
        self.job = RemoteJob("conn", str(self.work_dir), python, code_bundle().sha, "run", "run.preflight", "preflight")
        await self.line.up()
        async with self.connect() as shell:
            (await shell.run(code_bundle().unpack_command(self.job.code_dir, self.job.host_python))).require_success(
                "unpacking", "host"
            )
            (await shell.run(self.job.launch_command(0, 300.0, False))).require_success("launching", "host")

    @property
    def starts(self) -> list[int]:
        return self.python.starts

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
def watched(request, tmp_path, scripted_python):
    """Against the demo's server; against OpenSSH too where the test is marked with `both_servers`."""
    server = getattr(request, "param", "asyncssh")
    return Watched(tmp_path / "work", request.getfixturevalue(f"{server}_host"), scripted_python)
