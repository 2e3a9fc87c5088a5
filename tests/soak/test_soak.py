"""A short soak in every test run; `make soak` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.live
def test_twenty_seconds_of_kills_lose_and_double_nothing():
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--seconds", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert "lost: 0, doubled: 0, processes left: 0" in ended.stdout
    assert "killed: 0" not in ended.stdout
