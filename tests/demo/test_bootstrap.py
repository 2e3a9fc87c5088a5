"""The set-up script's four clear sentences, each before anything is half-installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def checkout(tmp_path: Path, repo_root: Path) -> Path:
    """A tree with the script and small locks, away from the real environments."""
    root = tmp_path / "checkout"
    script = root / "include" / "eagle3" / "demo" / "bootstrap.py"
    script.parent.mkdir(parents=True)
    shutil.copy(repo_root / "include" / "eagle3" / "demo" / "bootstrap.py", script)
    (root / "requirements").mkdir()
    for lock in ("requirements.txt", "requirements/dev.txt", "requirements/host-cpu.txt"):
        (root / lock).write_text("")
    shutil.copy(repo_root / "pyproject.toml", root)
    return root


def set_up(checkout: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = checkout / "include" / "eagle3" / "demo" / "bootstrap.py"
    command = [*prefix, sys.executable, str(script), *arguments]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("setup: ")
    return line


def test_a_missing_wheel(checkout):
    (checkout / "requirements" / "host-cpu.txt").write_text("no-such-package-anywhere==1.0\n")
    assert "no-such-package-anywhere==1.0" in one_sentence(set_up(checkout, "host"))
    assert not (checkout / ".venv-host").exists()


def test_an_unsupported_python(checkout):
    script = checkout / "include" / "eagle3" / "demo" / "bootstrap.py"
    pretend = "import runpy, sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (an old one)'; "
    code = pretend + f"runpy.run_path({str(script)!r}, run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "3.9.1" in one_sentence(result)
    assert "3.11" in result.stderr
    assert not (checkout / ".venv").exists()


def test_a_full_disk(checkout):
    mount = ("unshare", "--map-root-user", "--mount", "sh", "-c")
    copy = f"mount -t tmpfs -o size=1m none {checkout}/disk && cp -r {checkout}/include {checkout}/*.txt"
    copy += f" {checkout}/requirements {checkout}/pyproject.toml {checkout}/disk/ && exec "
    (checkout / "disk").mkdir()
    script = f"{checkout}/disk/include/eagle3/demo/bootstrap.py"
    result = subprocess.run(
        [*mount, f"{copy} {sys.executable} {script} host"], capture_output=True, text=True, check=False
    )
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip("this machine lets nobody mount a small disk")
    assert "GB free" in one_sentence(result)


def test_an_installed_environment_is_kept_and_a_new_lock_replaces_it(checkout):
    assert set_up(checkout, "host").returncode == 0
    installed = (checkout / ".venv-host" / ".complete").stat().st_mtime_ns
    again = set_up(checkout, "host")
    assert (again.returncode, again.stdout) == (0, "")
    assert (checkout / ".venv-host" / ".complete").stat().st_mtime_ns == installed
    (checkout / "requirements" / "host-cpu.txt").write_text("# another lock\n")
    assert "installing the host environment" in set_up(checkout, "host").stdout
