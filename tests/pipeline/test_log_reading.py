"""All that is concluded from a log, against the truth of every case of the corpus. Deviations are listed by name."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from eagle3.pipeline.log_reading import Process, read_log

CORPUS = Path(__file__).resolve().parents[1] / "log_corpus"
CASES = [json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))]
UNKNOWN = Process()

DEVIATIONS = {
    # whether the process stays is not in these texts: `--alive` tells
    "074-worker-died-unexpectedly-hang": {"hangs"},
    "125-hang-ctrl-c-during-load": {"hangs"},
    # the RPC that timed out says more than its heading does, and says that tokens were being sampled
    "126-hang-engine-dead-process-alive": {"phase", "decisive_line", "hangs"},
    # the text is silent: `--quiet-for` tells
    "120-hang-waiting-core-engine": {"fatal", "failure_kind", "hangs"},
    "121-hang-after-model-loading": {"fatal", "failure_kind", "hangs"},
    "122-hang-in-weight-loading": {"fatal", "failure_kind", "hangs"},
    # only a process table shows orphans
    "127-orphan-after-sigkill": {"phase", "fatal", "failure_kind", "hangs"},
    # that the script ended after its bar is not in the text
    "134-engine-core-died-at-end-of-script": {"phase", "elapsed_s", "eta_s"},
}
FIELDS = ("phase", "done", "total", "elapsed_s", "eta_s", "fatal", "failure_kind", "hangs")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_case_gives_its_truth(case: dict[str, Any]) -> None:
    reading, truth = read_log([case["log"].encode()], UNKNOWN), case["truth"]
    wrong = {name for name in FIELDS if reading[name] != truth.get(name)}
    if truth.get("decisive_line") and truth["decisive_line"] not in (reading["decisive_line"] or ""):
        wrong.add("decisive_line")
    assert wrong - {"decisive_line"} == DEVIATIONS.get(case["id"], set()) - {"decisive_line"}
    assert "decisive_line" not in wrong or case["id"] in DEVIATIONS
    assert bool(reading["advice"]) == reading["fatal"]


@pytest.mark.parametrize("name", ["120-hang-waiting-core-engine", "121-hang-after-model-loading"])
def test_silence_is_a_hang_only_beyond_the_phase_and_only_while_it_lives(name: str) -> None:
    log = json.loads((CORPUS / f"{name}.json").read_text())["log"].encode()
    hang = read_log([log], Process(is_alive=True, quiet_seconds=4 * 3600))
    assert (hang["failure_kind"], hang["hangs"], hang["fatal"]) == ("hang", True, True)
    assert "nvidia-smi" in hang["advice"]
    assert not read_log([log], Process(is_alive=True, quiet_seconds=30))["fatal"]
    dead = read_log([log], Process(is_alive=False, quiet_seconds=4 * 3600))
    assert (dead["fatal"], dead["failure_kind"], dead["hangs"]) == (True, None, False)


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [(137, "oom_killer"), (-9, "oom_killer"), (143, "cancelled"), (-7, "sigbus_shm"), (139, "worker_died"), (3, None)],
)
def test_an_exit_code_tells_where_the_text_does_not(exit_code: int, kind: str | None) -> None:
    reading = read_log([b"INFO 11-29 10:00:00 [x.py:1] Starting to load model /m...\n"], Process(exit_code=exit_code))
    assert (reading["fatal"], reading["failure_kind"]) == (True, kind)


def test_exit_code_0_is_no_success_by_itself() -> None:
    loading = b"INFO 11-29 10:00:00 [x.py:1] Starting to load model /m...\n"
    assert read_log([loading], Process(exit_code=0))["fatal"]
    assert not read_log([loading + b"INFO:     Application shutdown complete.\n"], Process(exit_code=0))["fatal"]


def test_an_empty_log_is_unknown() -> None:
    assert read_log([], UNKNOWN)["phase"] == "unknown"
    assert not read_log([b"hello\n"], UNKNOWN)["fatal"]


@pytest.mark.parametrize("seed", range(20))
def test_random_cuts_and_random_bytes_neither_raise_nor_change_the_verdict(seed: int) -> None:
    chance = random.Random(seed)
    content = chance.choice(CASES)["log"].encode()
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(content))
        content = content[:at] + chance.randbytes(chance.randrange(1, 60)) + content[at + chance.randrange(30) :]
    content = content[: chance.randrange(len(content))]
    chunks, start = [], 0
    while start < len(content):
        size = chance.choice((1, 2, 7, 64, 1000))
        chunks.append(content[start : start + size])
        start += size
    assert read_log(chunks, UNKNOWN) == read_log([content], UNKNOWN)
