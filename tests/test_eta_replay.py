"""The README's table of ETA errors is the one that `make eta` prints, and ours is the smallest mean."""

import re
import subprocess
import sys


def test_ours_beats_the_bar_and_the_naive_mean(repo_root):
    command = [sys.executable, str(repo_root / "tests" / "eta_replay.py")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (repo_root / "README.md").read_text(), "put the output of `make eta` into the README"
    *_, mean, mean_with_a_last_load = [_numbers(line) for line in table.splitlines()]
    assert len(mean) == 4
    for ours, bars, naive in mean:
        assert ours < min(bars, naive)
    assert all(ours <= 10 for ours, _, _ in mean[1:])
    ours, bars, naive = mean_with_a_last_load[0]
    assert ours < 0.6 * min(bars, naive)


def _numbers(line):
    return [[float(number) for number in re.findall(r"[\d.]+", cell)] for cell in line.split("|")[2:-1]]
