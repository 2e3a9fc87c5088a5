"""GPU hosts as Airflow connections of type ssh, by both of the provider's hooks.

The connection's extra may hold `work_dir` and `host_python` beside the provider's own keys: facts of the host, not of a
run. Secrets stay in the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

from airflow.providers.ssh.hooks.ssh import SSHHook, SSHHookAsync
from airflow.sdk import BaseHook

from eagle3.contract.errors import ConfigError
from eagle3.gpu_host.shell import AsyncsshShell, ParamikoShell, Unreachable, is_refusal

CONNECT_TIMEOUT_SECONDS = 30.0
MAX_LOGINS_AT_ONCE = 5  # OpenSSH turns logins away at random from the tenth unfinished one on (MaxStartups)


def host_settings(ssh_conn_id: str) -> dict[str, Any]:
    """`work_dir` and `host_python` from the connection's extra, None where it has none.

    Raises ConfigError when there is no such connection.
    """
    try:
        extra = BaseHook.get_connection(ssh_conn_id).extra_dejson
    except Exception as error:  # Airflow raises a different class for each secrets backend
        raise ConfigError(
            f"there is no usable connection {ssh_conn_id!r} ({error}); create it under Admin > Connections, type ssh"
        ) from error
    return {name: extra.get(name) for name in ("work_dir", "host_python")}


@contextmanager
def connect(ssh_conn_id: str) -> Iterator[ParamikoShell]:
    """A shell on the host for the time of the block. Raises Unreachable, or ConfigError where the host refuses us."""
    hook = SSHHook(ssh_conn_id=ssh_conn_id, conn_timeout=int(CONNECT_TIMEOUT_SECONDS), cmd_timeout=None)
    try:
        client = hook.get_conn()
    except Exception as error:
        raise _connection_error(ssh_conn_id, error) from error
    with client:
        yield ParamikoShell(client, hook.remote_host)


@asynccontextmanager
async def connect_async(ssh_conn_id: str) -> AsyncIterator[AsyncsshShell]:
    """The same inside a trigger."""
    hook = SSHHookAsync(ssh_conn_id=ssh_conn_id)
    try:
        async with _logins(ssh_conn_id):
            connection = await asyncio.wait_for(hook.get_conn(), CONNECT_TIMEOUT_SECONDS)
    except Exception as error:
        raise _connection_error(ssh_conn_id, error) from error
    async with connection:
        yield AsyncsshShell(connection, ssh_conn_id)


@cache
def _logins(ssh_conn_id: str) -> asyncio.Semaphore:
    return asyncio.Semaphore(MAX_LOGINS_AT_ONCE)


def _connection_error(ssh_conn_id: str, error: Exception) -> Exception:
    said = str(error) or type(error).__name__
    if is_refusal(error) or isinstance(error, ValueError):
        return ConfigError(
            f"the host of connection {ssh_conn_id!r} refuses us: {said}. Check the connection's login, key and "
            "`host_key` (compare with `ssh-keyscan -p PORT HOST`)"
        )
    return Unreachable(f"{ssh_conn_id}: {said}")
