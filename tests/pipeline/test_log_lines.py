import random
from pathlib import Path

import pytest

from eagle3.pipeline.log_lines import MAX_SEGMENT_BYTES, LineSplitter, clean, message, split_log

RAW = Path(__file__).resolve().parents[1] / "log_corpus" / "raw"

AWKWARD = (
    "(Worker_TP0 pid=1700) \rLoading safetensors checkpoint shards:  66% Completed | 42/64 [16:21<08:30, 23.21s/it]\n"
    "(Worker_TP0 pid=1700) \r\n"
    "\x1b[1;36m(EngineCore_DP0 pid=1412)\x1b[0;0m ERROR 10-25 13:08:43 [core.py:708] Traceback:\r\n"
    "\r 35%|███▍      | 1749/5000 [12:34<23:21,  2.32it/s]\r 36%|███▌      | 1750/5000 [12:34<23:20,  2.32it/s]\n\n"
    "schöne Grüße"
).encode() + b" \xff\xfe the end"


def fed(chunks: list[bytes]) -> list[str]:
    splitter = LineSplitter()
    segments = [segment for chunk in chunks for segment in splitter.feed(chunk)]
    return segments + splitter.finish()


def test_cr_lf_and_crlf_end_a_segment() -> None:
    assert split_log(AWKWARD) == [
        "Loading safetensors checkpoint shards:  66% Completed | 42/64 [16:21<08:30, 23.21s/it]",
        "ERROR 10-25 13:08:43 [core.py:708] Traceback:",
        " 35%|███▍      | 1749/5000 [12:34<23:21,  2.32it/s]",
        " 36%|███▌      | 1750/5000 [12:34<23:20,  2.32it/s]",
        "schöne Grüße \ufffd\ufffd the end",
    ]


def test_no_cut_changes_the_segments() -> None:
    """Row 7 of the faults: every byte offset, inside UTF-8 too. Seen to fail when each chunk is decoded by itself."""
    whole = split_log(AWKWARD)
    for offset in range(len(AWKWARD) + 1):
        assert fed([AWKWARD[:offset], AWKWARD[offset:]]) == whole, offset
    assert fed([bytes([byte]) for byte in AWKWARD]) == whole


@pytest.mark.parametrize("path", sorted(RAW.glob("*.log")), ids=lambda path: path.name)
def test_random_chunks_of_real_logs_change_nothing(path: Path) -> None:
    content, chooser, chunks = path.read_bytes(), random.Random(0), []
    start = 0
    while start < len(content):
        size = chooser.choice((1, 7, 100, 4096))
        chunks.append(content[start : start + size])
        start += size
    assert fed(chunks) == split_log(content)


def test_another_splitter_goes_on_from_the_pending_bytes() -> None:
    for offset in range(0, len(AWKWARD), 5):
        first = LineSplitter()
        segments = first.feed(AWKWARD[:offset])
        assert segments + split_log(AWKWARD[offset - first.pending_bytes :]) == split_log(AWKWARD)


def test_five_megabytes_of_bars_on_one_line_are_segments() -> None:
    """Row 7. Seen to fail when only LF ends a segment."""
    bars = [f"Processing:  {number % 100:2d}%|\u2588\u2588\x00  | {number}/140000" for number in range(140_000)]
    content = "\r".join(bars).encode()
    assert len(content) > 5e6
    splitter, segments = LineSplitter(), []
    for start in range(0, len(content), 1 << 16):
        segments += splitter.feed(content[start : start + (1 << 16)])
        assert splitter.pending_bytes < 200
    assert segments + splitter.finish() == bars


def test_of_an_endless_segment_the_tail_is_kept_whatever_the_chunks() -> None:
    """Row 7. Seen to fail without the limit on what is pending."""
    content = b"start" + b"x" * (5 * MAX_SEGMENT_BYTES) + b"tail\nnext\n"
    splitter, segments = LineSplitter(), []
    for start in range(0, len(content), 1000):
        segments += splitter.feed(content[start : start + 1000])
        assert splitter.pending_bytes <= 2 * MAX_SEGMENT_BYTES + 1000
    assert segments == split_log(content)
    assert len(segments[0]) == MAX_SEGMENT_BYTES
    assert segments[0].endswith("xtail")
    assert segments[1] == "next"


@pytest.mark.parametrize(
    "raw",
    [
        "(Worker_TP0 pid=1700) text",
        "(VllmWorker rank=0 pid=241) text",
        "(Worker pid=1) (Worker_DP0_EP0 pid=1) text",
        "(RayWorkerWrapper pid=336, ip=10.0.0.5) text",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m text",
        "2026-11-29T10:00:00.123456789Z stderr F (EngineCore pid=3) text  ",
    ],
)
def test_prefixes_are_stripped(raw: str) -> None:
    assert clean(raw) == "text"


def test_other_brackets_stay() -> None:
    assert clean("(see pid=3 above) text") == "(see pid=3 above) text"


def test_message_is_the_text_of_a_record() -> None:
    assert message("ERROR 10-22 09:33:48 [core.py:708]   File x") == "  File x"
    assert message("INFO 01-31 10:27:32 model_runner.py:1110] Starting") == "Starting"
    assert message("DEBUG 01-31 10:27:32 [v1/executor/multiproc_executor.py:597] x") == "x"
    assert message("[rank0]: TypeError: x") == "TypeError: x"
