"""One remote command over one open connection: paramiko where we wait, asyncssh where a trigger polls."""

import asyncio
import json
import logging
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import asyncssh
import paramiko

from eagle3.contract.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND_TIMEOUT_SECONDS = 120.0
FRAME = re.compile(rb"^eagle3 (\d+)\n", re.MULTILINE)  # of supervisor.framed

# Both tell of every connection and command at INFO, which would bury a task log.
asyncssh.set_log_level("WARNING")
logging.getLogger("paramiko").setLevel(logging.WARNING)


class Unreachable(Exception):
    """The host or the connection did not answer. Says nothing about the job, which goes on."""


class PollFailed(Unreachable):
    """The host answered, but the command that asks about the job failed there."""


@dataclass(frozen=True)
class Command:
    """A command line for the host: argv, never a shell program, and what goes to its standard input."""

    argv: "Sequence[str]"
    stdin: bytes = b""

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Output:
    exit_status: int | None  # None: ended by a signal, or the connection gave no status
    stdout: bytes
    stderr: bytes

    def require_success(self, what: str, host: str) -> bytes:
        """The standard output, or ConfigError with what the host said."""
        if self.exit_status == 0:
            return self.stdout
        said = self.stderr.decode(errors="replace").strip()[-2000:] or "nothing"
        raise ConfigError(f"{what} on {host} ended with status {self.exit_status}; it said: {said}")

    def require_json(self, what: str, host: str) -> Any:
        """The last line of the standard output: a host's login scripts may print something before it."""
        stdout = self.require_success(what, host)
        try:
            return json.loads(stdout.strip().rpartition(b"\n")[2])
        except ValueError:
            raise ConfigError(f"{what} on {host}: not an answer of ours: {stdout[-300:]!r}") from None


class ParamikoShell:
    """Runs commands over an open paramiko client (`SSHHook.get_conn()`)."""

    def __init__(self, client: paramiko.SSHClient, host: str) -> None:
        self._client = client
        self.host = host

    def run(self, command: Command, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> Output:
        try:
            stdin, stdout, stderr = self._client.exec_command(str(command), timeout=timeout_seconds)
            stdin.write(command.stdin)
            stdin.channel.shutdown_write()
            out, err = stdout.read(), stderr.read()
            return Output(stdout.channel.recv_exit_status(), out, err)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{self.host}: {error or type(error).__name__}") from error

    def ask(self, command: Command) -> bytes:
        """The framed answer. Raises Unreachable, or PollFailed with what the command said."""
        output = self.run(command)
        frame = FRAME.search(output.stdout)
        if frame is None or len(output.stdout) < frame.end() + int(frame[1]):
            raise _poll_failed(self.host, output.exit_status, output.stderr or output.stdout)
        return output.stdout[frame.end() : frame.end() + int(frame[1])]


def _poll_failed(host: str, status: int | None, said: bytes) -> PollFailed:
    text = said.decode(errors="replace").strip()[-2000:] or "nothing"
    return PollFailed(f"polling on {host} ended with status {status}; it said: {text}")


class AsyncsshShell:
    """Runs commands over an open asyncssh connection (`SSHHookAsync.get_conn()`)."""

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        host: str,
        timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
    ) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self.host = host

    async def run(self, command: Command) -> Output:
        try:
            # encoding=None: bytes stay bytes, a character cut by the end of a read is no error
            result = await asyncio.wait_for(
                self._connection.run(str(command), input=command.stdin, encoding=None, check=False),
                self._timeout_seconds,
            )
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise Unreachable(f"{self.host}: {error or type(error).__name__}") from error
        return Output(result.exit_status, cast(bytes, result.stdout), cast(bytes, result.stderr))

    @asynccontextmanager
    async def dialogue(self, command: Command) -> "AsyncIterator[Dialogue]":
        """A command that stays and answers questions, for the time of the block."""
        try:
            process = await asyncio.wait_for(
                self._connection.create_process(str(command), encoding=None), self._timeout_seconds
            )
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise Unreachable(f"{self.host}: {error or type(error).__name__}") from error
        try:
            yield Dialogue(process, self.host, self._timeout_seconds)
        finally:
            process.close()


class Dialogue:
    """Questions of one line to a command on the host, and its framed answers."""

    def __init__(self, process: "asyncssh.SSHClientProcess[bytes]", host: str, timeout_seconds: float) -> None:
        self._process = process
        self._host = host
        self._timeout_seconds = timeout_seconds

    async def ask(self, question: bytes) -> bytes:
        """Raises Unreachable, or PollFailed with what the command said when it ended."""
        try:
            return await asyncio.wait_for(self._ask(question), self._timeout_seconds)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise Unreachable(f"{self._host}: {error or type(error).__name__}") from error

    async def _ask(self, question: bytes) -> bytes:
        try:
            self._process.stdin.write(question + b"\n")
            while (frame := FRAME.match(await self._process.stdout.readuntil(b"\n"))) is None:
                pass
            return await self._process.stdout.readexactly(int(frame[1]))
        except (asyncio.IncompleteReadError, BrokenPipeError):
            said = await self._process.stderr.read()
            await self._process.wait_closed()  # the status comes after the end of the output
            status = self._process.exit_status
            if not said and status is None and self._process.exit_signal is None:
                raise Unreachable(f"{self._host}: the connection ended") from None
            raise _poll_failed(self._host, status, said) from None


def is_refusal(error: BaseException) -> bool:
    """The host answered and said no (key, host key, permission): waiting cannot help."""
    return isinstance(
        error,
        (
            asyncssh.HostKeyNotVerifiable,
            asyncssh.PermissionDenied,
            asyncssh.KeyImportError,
            paramiko.AuthenticationException,
            paramiko.BadHostKeyException,
        ),
    ) or (isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error))
