"""What the tests share: the two environments, small targets, and SSH servers that are real."""

import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from eagle3.demo.lifecycle import access_token
from eagle3.demo.site import Site, free_port, is_port_busy
from eagle3.demo.ssh_server import make_key, public_line

REPO_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return REPO_ROOT


@pytest.fixture(scope="session")
def host_python() -> str:
    python = Path(os.environ.get("EAGLE3_HOST_PYTHON", REPO_ROOT / ".venv-host" / "bin" / "python"))
    assert python.exists(), f"there is no host environment at {python}: run `make setup`"
    return str(python)


@pytest.fixture(scope="session")
def host_environment() -> dict[str, str]:
    """What a login on the host would have, and our code."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(REPO_ROOT / "include"), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="session")
def toy_work_dir(host_python: str, host_environment: dict[str, str]) -> Path:
    """A host's work directory with the toy targets and their prompts; made once for each checkout."""
    work_dir = REPO_ROOT / ".demo" / "test-targets"
    for target in ("toy-qwen3-moe", "toy-mla"):
        command = [host_python, "-m", "eagle3.demo.targets", target, "--work-dir", str(work_dir)]
        subprocess.run(command, env=host_environment, check=True)
    return work_dir


@dataclass(frozen=True)
class SshHost:
    """A running SSH server on loopback that lets one key in."""

    port: int
    client_key: Path
    host_key_line: str
    login: str
    pid: int


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def asyncssh_host(tmp_path_factory: pytest.TempPathFactory, host_environment: dict[str, str]) -> Iterator[SshHost]:
    """The demo's own server, in a process of its own."""
    directory = tmp_path_factory.mktemp("asyncssh")
    server = subprocess.Popen([sys.executable, "-m", "eagle3.demo.ssh_server", str(directory)], env=host_environment)
    try:
        _wait_for(directory / "port")
        yield SshHost(
            port=int((directory / "port").read_text()),
            client_key=directory / "client_key",
            host_key_line=public_line(make_key(directory / "host_key")),
            login=os.environ.get("USER", "root"),
            pid=server.pid,
        )
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def openssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """OpenSSH's sshd, where it is installed, with a configuration of its own."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])
    if sshd is None:
        pytest.skip("OpenSSH's sshd is not installed here (Debian: openssh-server)")
    directory = tmp_path_factory.mktemp("openssh")
    host_key, client_key, port = make_key(directory / "host_key"), make_key(directory / "client_key"), free_port()
    (directory / "authorized_keys").write_text(public_line(client_key) + "\n")
    (directory / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\nPidFile {directory}/pid\n"
        f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it when it runs as root
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(directory / "sshd_config")])
    try:
        deadline = time.monotonic() + 20
        while not is_port_busy(port):
            assert server.poll() is None, "sshd did not start"
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.05)
        yield SshHost(port, directory / "client_key", public_line(host_key), getpass.getuser(), server.pid)
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(params=["asyncssh", "openssh"])
def ssh_host(request: pytest.FixtureRequest) -> SshHost:
    """Each test with it runs against both servers."""
    return request.getfixturevalue(f"{request.param}_host")


@dataclass(frozen=True)
class ScriptedPython:
    """A stand-in for `host_python`: hands `-m eagle3.remote STEP` to a bash script, all else to the real one."""

    path: Path

    @property
    def starts(self) -> list[int]:
        """The pid of every process that ran the step."""
        starts = self.path.parent / "starts"
        return [int(pid) for pid in starts.read_text().split()] if starts.exists() else []

    @property
    def job_dir(self) -> Path:
        return Path((self.path.parent / "job_dir").read_text().strip())


@pytest.fixture(scope="session")
def scripted_python(host_python: str) -> Callable[..., ScriptedPython]:
    """`scripted_python(folder, script)`; the script's function `finish` says that it did well.

    `only_step`: the others fail unseen. `after_launch`: bash that delays the supervisor's answer to a launch.
    """
    event = '{"v": 1, "t": 1, "kind": "finished", "result": {"a": 1}, "error": null}'
    finish = f"finish() {{ echo '{event}' >> $EAGLE3_JOB_DIR/events.jsonl; }}"

    def make(folder: Path, script: str, only_step: str = "*", after_launch: str = "true") -> ScriptedPython:
        folder.mkdir(parents=True)
        note = f"echo $EAGLE3_JOB_DIR > {folder}/job_dir; echo $$ >> {folder}/starts"
        (folder / "step.sh").write_text(f"{note}\n{finish}\n{script}\n")
        python = folder / "python"
        python.write_text(
            f'#!/bin/bash\nif [ "$1 $2" = "-m eagle3.remote" ]; then\n'
            f'  [[ "$3" = {only_step} ]] && exec bash {folder}/step.sh; exit 1\nfi\n'
            f'{host_python} "$@"\n'
            f'status=$?; [[ "$*" = *supervisor\\ launch* ]] && {after_launch}; exit $status\n'
        )
        python.chmod(0o755)
        return ScriptedPython(python)

    return make


@pytest.fixture(scope="session")
def site(tmp_path_factory, toy_work_dir) -> Site:
    root = tmp_path_factory.mktemp("site")
    (root / "host").mkdir()
    for name in ("models", "prompts"):  # the target is made once for all tests
        (root / "host" / name).symlink_to(toy_work_dir / name)
    os.environ["EAGLE3_AIRFLOW_PORT"] = str(free_port())
    return Site(root)


@pytest.fixture(scope="session")
def eagle3(site):
    """Runs the console command, as a user would."""

    def run(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("eagle3")), *arguments]
        environment = {**os.environ, "EAGLE3_DEMO_DIR": str(site.root), "COLUMNS": "160"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)

    yield run
    run("down", seconds=120)


@pytest.fixture(scope="session")
def up(eagle3):
    result = eagle3("up", "--preset", "toy", seconds=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="session")
def api(site, up) -> httpx.Client:
    headers = {"Authorization": f"Bearer {access_token(site)}"}
    return httpx.Client(base_url=f"{site.url}/api/v2", headers=headers, timeout=60)
