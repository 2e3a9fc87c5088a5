"""A job over real SSH, by both clients, against both servers: code, launch, poll, kill."""

import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh
import paramiko
import pytest

from eagle3.contract.errors import ConfigError
from eagle3.contract.job import Verdict
from eagle3.gpu_host.code_bundle import code_bundle
from eagle3.gpu_host.remote_job import RemoteJob, Seen, parse_poll
from eagle3.gpu_host.shell import AsyncsshShell, Command, ParamikoShell, PollFailed, Unreachable, is_refusal


@contextmanager
def paramiko_shell(host):
    client = paramiko.SSHClient()
    kind, key = host.host_key_line.split()
    host_key = paramiko.Ed25519Key(data=__import__("base64").b64decode(key))
    client.get_host_keys().add(f"[127.0.0.1]:{host.port}", kind, host_key)
    client.connect("127.0.0.1", host.port, host.login, key_filename=str(host.client_key), look_for_keys=False)
    with client:
        yield ParamikoShell(client, "127.0.0.1")


@asynccontextmanager
async def asyncssh_shell(host):
    known_hosts = f"127.0.0.1 {host.host_key_line}".encode()
    connection = await asyncssh.connect(
        "127.0.0.1", host.port, username=host.login, client_keys=[str(host.client_key)], known_hosts=known_hosts
    )
    async with connection:
        yield AsyncsshShell(connection, "127.0.0.1")


@pytest.fixture
def job(tmp_path, host_python) -> RemoteJob:
    """A step that fails at once: its run folder has no spec. Its work directory has a name that shells dislike.

    Row 21. Seen to fail when a command's words are joined without quoting.
    """
    work_dir = tmp_path / "work dir $(touch x)\n`touch x`; touch x \" 'é"
    return RemoteJob("conn", str(work_dir), host_python, code_bundle().sha, "run", "run.report", "report")


def bring_code(shell: ParamikoShell, job: RemoteJob) -> None:
    assert shell.run(code_bundle().is_there_command(job.code_dir)).exit_status == 1
    command = code_bundle().unpack_command(job.code_dir, job.host_python)
    shell.run(command).require_success("unpacking", shell.host)
    assert shell.run(code_bundle().is_there_command(job.code_dir)).exit_status == 0


async def test_launch_poll_to_the_end(ssh_host, job):
    with paramiko_shell(ssh_host) as shell:
        bring_code(shell, job)
        shell.run(job.launch_command(0, 60.0, False)).require_success("launching", shell.host)
    log, events, seen = b"", b"", Seen()
    async with asyncssh_shell(ssh_host) as watcher, watcher.dialogue(job.follow_command()) as follower:
        deadline = time.monotonic() + 30
        while True:
            poll = parse_poll(await follower.ask(seen.as_question()))
            log, events, seen = log + poll.log, events + poll.events, poll.seen
            if poll.state.verdict is Verdict.FAILED and not poll.has_more:
                break
            assert time.monotonic() < deadline
    assert poll.state.exit_code == 2
    assert b"no run spec at" in log
    assert log == (job.job_dir / "log").read_bytes()
    assert events == (job.job_dir / "events.jsonl").read_bytes()
    assert b'"type": "ConfigError"' in events
    assert not (Path(job.work_dir).parent / "x").exists(), "a path was executed"


async def test_kill_over_ssh(ssh_host, job):
    with paramiko_shell(ssh_host) as shell:
        bring_code(shell, job)
        endless = job.put_command(job.code_dir / "eagle3/remote/__main__.py", b"import time; time.sleep(300)")
        shell.run(endless).require_success("putting", shell.host)
        shell.run(job.launch_command(1, 60.0, False)).require_success("launching", shell.host)
        shell.run(job.kill_command(0)).require_success("killing what an earlier clear started", shell.host)
        poll = parse_poll(shell.ask(job.poll_command(Seen().as_question())))
        assert poll.state.verdict is Verdict.RUNNING
        shell.run(job.kill_command(1)).require_success("killing", shell.host)
        poll = parse_poll(shell.ask(job.poll_command(Seen().as_question())))
    assert (poll.state.verdict, poll.state.reason, poll.state.signal) == (Verdict.FAILED, "killed", 15)


def test_bytes_stay_bytes_both_ways(ssh_host):
    with paramiko_shell(ssh_host) as shell:
        every_byte = bytes(range(256)) * 5000
        assert shell.run(Command(["cat"], every_byte)).stdout == every_byte
        output = shell.run(Command(["sh", "-c", "echo no >&2; exit 3"]))
    assert (output.exit_status, output.stderr) == (3, b"no\n")
    with pytest.raises(ConfigError, match=r"status 3.*no"):
        output.require_success("asking", "the host")


async def test_a_lost_connection_is_unreachable_and_a_wrong_key_is_a_refusal(ssh_host, tmp_path):
    async with asyncssh_shell(ssh_host) as shell:
        shell._connection.abort()
        with pytest.raises(Unreachable):
            await shell.run(Command(["true"]))
    other_key = asyncssh.generate_private_key("ssh-ed25519")
    known_hosts = f"127.0.0.1 {ssh_host.host_key_line}".encode()
    with pytest.raises(asyncssh.PermissionDenied) as refused:
        await asyncssh.connect("127.0.0.1", ssh_host.port, client_keys=[other_key], known_hosts=known_hosts)
    assert is_refusal(refused.value)
    wrong_host = b"127.0.0.1 " + other_key.export_public_key("openssh")
    with pytest.raises(asyncssh.HostKeyNotVerifiable) as changed:
        await asyncssh.connect("127.0.0.1", ssh_host.port, known_hosts=wrong_host)
    assert is_refusal(changed.value)


def test_what_login_scripts_print_is_no_answer(ssh_host, job, tmp_path):
    """Seen to fail without the frame of an answer, and with `json.loads` of the whole output."""
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "Welcome to gpu-7!"\nexec {job.host_python} "$@"\n')
    noisy.chmod(0o755)
    job = replace(job, host_python=str(noisy))
    with paramiko_shell(ssh_host) as shell:
        bring_code(shell, job)
        launched = shell.run(job.launch_command(0, 60.0, False)).require_json("launching", shell.host)
        assert launched["launched"] is True
        assert parse_poll(shell.ask(job.poll_command(Seen().as_question()))).state.attempt == 1


async def test_a_poll_that_fails_on_the_host_says_what_the_host_said(ssh_host, job):
    with paramiko_shell(ssh_host) as shell, pytest.raises(PollFailed, match=r"status 1.*No module named"):
        shell.ask(job.poll_command(Seen().as_question()))
    async with asyncssh_shell(ssh_host) as watcher, watcher.dialogue(job.follow_command()) as follower:
        with pytest.raises(PollFailed, match=r"status 1.*No module named"):
            await follower.ask(Seen().as_question())
