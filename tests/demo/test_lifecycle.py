"""`eagle3 up` on a machine where it cannot work: one sentence, nothing started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def eagle3(tmp_path: Path):
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("eagle3")), *arguments]
        variables = {**os.environ, "EAGLE3_DEMO_DIR": str(tmp_path / "site"), **environment}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_a_busy_port_is_named_with_the_way_out(eagle3, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        result = eagle3("up", "--preset", "toy", EAGLE3_AIRFLOW_PORT=port)
    assert result.returncode == 1
    assert f"port {port} is in use" in result.stderr
    assert "EAGLE3_AIRFLOW_PORT" in result.stderr
    assert not (tmp_path / "site" / "host").exists()


def test_a_missing_host_environment_is_named(eagle3, tmp_path):
    result = eagle3("up", EAGLE3_HOST_PYTHON=str(tmp_path / "no-python"))
    assert result.returncode == 1
    assert "make setup" in result.stderr


def test_down_with_nothing_up_is_fine(eagle3):
    assert eagle3("down").returncode == 0
