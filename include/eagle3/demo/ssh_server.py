"""The demo's GPU host: a real SSH server on loopback that runs commands as the current user. Key login only.

By hand: `python -m eagle3.demo.ssh_server DIR`: makes `host_key` and `client_key` there, listens on a free port and
writes it to DIR/port; started again, it listens where it did.
"""

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import asyncssh


def make_key(path: Path) -> asyncssh.SSHKey:
    """The private key at `path`, generated on the first call; readable by its owner alone."""
    if path.exists():
        return asyncssh.read_private_key(path)
    key = asyncssh.generate_private_key("ssh-ed25519")
    # paramiko reads OpenSSH's format; the mode is set before the key is in the file
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.export_private_key("openssh"))
    return key


def public_line(key: asyncssh.SSHKey) -> str:
    """`ssh-ed25519 AAAA...`: what a connection's `host_key` and an authorized_keys line hold."""
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


class KeyLoginOnly(asyncssh.SSHServer):
    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False


async def run_command(process: asyncssh.SSHServerProcess) -> None:
    """What sshd does for `ssh host COMMAND`: the user's command in a shell of its own session, bytes both ways."""
    if process.command is None:
        process.stderr.write(b"this server runs commands only\n")
        process.exit(1)
        return
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        process.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path.home(),
        start_new_session=True,
    )
    feeding = asyncio.create_task(_copy(process.stdin, child.stdin))
    await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
    status = await child.wait()
    feeding.cancel()
    if status < 0:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        process.exit(status)


async def _copy(source: Any, target: Any) -> None:
    """Bytes until the source ends or the target no longer listens; a command's input is closed behind the last one."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        if isinstance(target, asyncio.StreamWriter):
            target.close()


async def listen(directory: Path, port: int = 0) -> asyncssh.SSHAcceptor:
    """Serve on 127.0.0.1; port 0 takes a free one."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    client_key = make_key(directory / "client_key")
    return await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=KeyLoginOnly,
        server_host_keys=[make_key(directory / "host_key")],
        authorized_client_keys=asyncssh.import_authorized_keys(public_line(client_key)),
        process_factory=run_command,
        encoding=None,
    )


async def serve(directory: Path) -> None:
    port_path = directory / "port"
    acceptor = await listen(directory, int(port_path.read_text()) if port_path.exists() else 0)
    if not port_path.exists():
        aside = directory / ".port"  # nobody reads half a number, whenever this process is killed
        aside.write_text(str(acceptor.get_port()))
        aside.replace(port_path)
    await acceptor.wait_closed()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    asyncio.run(serve(parser.parse_args().directory))
