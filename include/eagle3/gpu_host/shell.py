"""One remote command over one open connection: paramiko where we wait, asyncssh where a trigger polls."""

import asyncio
import logging
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import asyncssh
import paramiko

from eagle3.contract.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND_TIMEOUT_SECONDS = 120.0

# Both tell of every connection and command at INFO, which would bury a task log.
asyncssh.set_log_level("WARNING")
logging.getLogger("paramiko").setLevel(logging.WARNING)


class Unreachable(Exception):
    """The host or the connection did not answer. Says nothing about the job, which goes on."""


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
