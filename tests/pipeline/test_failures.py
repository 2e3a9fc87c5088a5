"""Replays the log corpus: every failure gets its reason and decisive line, nothing harmless gets one."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.pipeline.failure_rules import RULES, Reason
from eagle3.pipeline.failures import MAX_LINE_CHARS, Evidence, find_failure
from eagle3.pipeline.log_lines import split_log

CORPUS = Path(__file__).resolve().parents[1] / "log_corpus"
CASES = [json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))]

# There the text is silent: Progress.stall and the host's process table tell.
NOT_IN_THE_TEXT = {
    "120-hang-waiting-core-engine",
    "121-hang-after-model-loading",
    "122-hang-in-weight-loading",
    "127-orphan-after-sigkill",
}
# The same reason from a line that says more than the case's heading does.
BETTER_LINE = {"126-hang-engine-dead-process-alive": "TimeoutError: RPC call to sample_tokens timed out."}


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] == "failure"], ids=lambda case: case["id"])
def test_failure(case: dict[str, Any]) -> None:
    failure, truth = find_failure(split_log(case["log"].encode())), case["truth"]
    if truth["detect"] != "text":
        assert case["id"] in NOT_IN_THE_TEXT
        assert failure is None
        return
    assert failure is not None
    assert failure.reason == truth["failure_kind"]
    assert BETTER_LINE.get(case["id"], truth["decisive_line"]) in failure.decisive_line
    assert failure.advice


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] != "failure"], ids=lambda case: case["id"])
def test_nothing_harmless_is_a_failure(case: dict[str, Any]) -> None:
    assert find_failure(split_log(case["log"].encode())) is None


@pytest.mark.parametrize("path", sorted((CORPUS / "raw").glob("vllm-*.log")), ids=lambda path: path.name)
def test_good_runs_have_no_failure(path: Path) -> None:
    assert find_failure(split_log(path.read_bytes())) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_evidence_collected_line_by_line_gives_the_same_verdict(case: dict[str, Any]) -> None:
    segments, evidence = split_log(case["log"].encode()), Evidence()
    for segment in [*segments, *["a line of no interest"] * 5000]:
        evidence.feed(segment)
    assert evidence.find_failure() == find_failure(segments)


def test_a_torchrun_failure_shows_the_exception_of_the_rank() -> None:
    failure = find_failure(split_log((CORPUS / "raw" / "speculators-0.9-train-fused-loss-fails.log").read_bytes()))
    assert failure is not None
    assert failure.reason is Reason.WORKER_DIED
    assert failure.decisive_line.startswith("AssertionError: ListVariable(length=21) is already tracked for mutation.")
    assert len(failure.decisive_line) <= MAX_LINE_CHARS


def test_a_terminated_training_was_cancelled() -> None:
    failure = find_failure(split_log((CORPUS / "raw" / "speculators-0.9-train-sigterm.log").read_bytes()))
    assert failure is not None
    assert failure.reason is Reason.CANCELLED


def test_a_heading_shows_the_unknown_exception_below_it() -> None:
    failure = find_failure(
        [
            "ERROR 11-18 14:16:34 [core.py:708] EngineCore failed to start.",
            "ERROR 11-18 14:16:34 [core.py:708] Traceback (most recent call last):",
            'ERROR 11-18 14:16:34 [core.py:708]   File "x.py", line 1, in run',
            "ERROR 11-18 14:16:34 [core.py:708]     raise OddError(1)",
            "ERROR 11-18 14:16:34 [core.py:708] vllm.OddError: nobody has seen this before",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert failure is not None
    assert (failure.reason, failure.decisive_line) == (
        Reason.ENGINE_INIT_FAILED,
        "vllm.OddError: nobody has seen this before",
    )


def test_a_cause_outranks_the_generic_lines_before_it() -> None:
    failure = find_failure(["EngineCore failed to start.", "x died unexpectedly", "OSError: No space left on device"])
    assert failure is not None
    assert failure.reason is Reason.DISK_FULL


def test_what_happened_before_the_last_start_does_not_count() -> None:
    old = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    started = "INFO 11-29 13:52:48 [api_utils.py:286] non-default args: {'model': 'x'}"
    assert find_failure([old, started]) is None
    assert find_failure([started, old]) is not None


def test_a_death_is_a_failure_again_once_work_goes_on_after_a_stop() -> None:
    done = "Processed prompts: 100%|██████████| 4/4 [00:00<00:00, 10.58it/s]"
    working = "Processed prompts:  25%|██▌       | 1/4 [00:00<00:00, 10.58it/s]"
    died = "ERROR 01-07 20:00:59 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down."
    assert find_failure([done, died]) is None
    assert find_failure([done, working, died]) is not None


def test_a_tried_api_is_not_an_api_mismatch() -> None:
    error = "TypeError: f() got an unexpected keyword argument 'x'"
    assert find_failure([error, "falling back to the old call"]) is None
    assert find_failure([error]) is not None


def test_every_reason_has_a_rule_with_advice() -> None:
    assert {rule.reason for rule in RULES} == set(Reason)
    assert all(rule.advice and "\n" not in rule.advice for rule in RULES)
