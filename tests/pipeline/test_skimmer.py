import json
import random
import re
from pathlib import Path

import pytest

from eagle3.pipeline.log_reading import Process, read_log
from eagle3.pipeline.skimmer import TAKEN_OF_RUN, Skimmer, Told

CORPUS = Path(__file__).resolve().parents[1] / "log_corpus"
CASES = [json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))]


def taken(content: bytes, told: Told, chunk_size: int) -> list[str]:
    segments: list[str] = []

    def take(segment: str) -> Told:
        segments.append(segment)
        return told

    skimmer = Skimmer(take)
    for start in range(0, len(content), chunk_size):
        skimmer.feed(content[start : start + chunk_size])
    skimmer.finish()
    return segments


def test_of_lines_alike_that_told_nothing_the_first_is_taken() -> None:
    content = b"GET from 10.0.0.1\nGET from 20.3.9.7\nPUT from 10.0.0.1\n"
    assert taken(content, Told.NOTHING, 1000) == ["GET from 10.0.0.1", "PUT from 10.0.0.1"]
    assert len(taken(content, Told.MORE, 1000)) == 3


@pytest.mark.parametrize("chunk_size", [1, 7, 10_000])
def test_of_a_run_that_counts_the_first_and_the_last_are_taken_whatever_the_chunks(chunk_size: int) -> None:
    bars = [f"row {number} of 999" for number in range(100, 400)]
    segments = taken("\r".join([*bars, "done"]).encode(), Told.COUNTS, chunk_size)
    assert (segments[0], segments[-2:]) == (bars[0], [bars[-1], "done"])
    assert segments == taken("\r".join([*bars, "done"]).encode(), Told.COUNTS, 64)
    assert len(segments) < 300 / TAKEN_OF_RUN + 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_no_line_of_the_corpus_hides_one_like_it(case: dict) -> None:
    """Each line with other digits before it."""
    chance = random.Random(0)
    for line in re.split(r"[\r\n]+", case["log"]):
        alike = re.sub(r"\d", lambda match: str(chance.randrange(10)), line)
        alone, after = (read_log([text.encode()], Process()) for text in (line, f"{alike}\n{line}"))
        if not read_log([alike.encode()], Process())["fatal"]:
            assert (after["fatal"], after["failure_kind"]) == (alone["fatal"], alone["failure_kind"]), line
        assert (after["done"], after["total"]) == (alone["done"], alone["total"]), line


@pytest.mark.parametrize(
    ("harmless", "fatal", "kind"),
    [
        ("worker exitcode: -0", "worker exitcode: -9", "oom_killer"),
        ("worker exit code: -0", "worker exit code: -7", "sigbus_shm"),
        ("got signal: 28", "got signal: 15", "cancelled"),
    ],
)
def test_where_a_number_decides_no_line_is_left_out(harmless: str, fatal: str, kind: str) -> None:
    """Seen to fail without `_DIGITS_DECIDE`."""
    assert not read_log([harmless.encode()], Process())["fatal"]
    assert read_log([f"{harmless}\n{fatal}\n".encode()], Process())["failure_kind"] == kind
