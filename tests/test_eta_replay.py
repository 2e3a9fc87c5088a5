"""The README's table of ETA errors is the one that `make eta` prints, and ours is the smallest mean."""

import re
import subprocess
import sys


def test_ours_beats_the_bar_and_the_naive_mean(repo_root):
    command = [sys.executable, str(repo_root / "tests" / "eta_replay.py")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (repo_root / "README.md").read_text(), "put the output of `make eta` into the README"
    points = [
        [float(number) for number in re.findall(r"[\d.]+", cell)] for cell in table.splitlines()[-1].split("|")[2:-1]
    ]
    assert len(points) == 4
    for ours, bars, naive in points:
        assert ours < min(bars, naive)
    assert all(ours <= 10 for ours, _, _ in points[1:])
