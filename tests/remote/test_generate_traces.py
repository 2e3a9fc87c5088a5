"""generate_traces against a real vLLM server on CPU: killed and resumed, failures, changed settings."""

import json
import signal
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.live

TOO_LONG = "word " * 600
NUM_EVAL, NUM_TRAINING = 4, 40


@pytest.fixture(scope="module")
def run(target_runs):
    """40 training prompts, one of which does not fit into the model."""
    prompts = [f"Question {number}: what is {number} times two?" for number in range(NUM_EVAL + NUM_TRAINING)]
    prompts[NUM_EVAL + 7] = TOO_LONG
    run = target_runs.make("traces", prompts)
    run.done("ensure_server")
    return run


def complete_lines(run) -> list[str]:
    path = run.paths.traces_path
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def test_killed_and_resumed_without_loss_or_repeat(run) -> None:
    first = run.start("generate_traces")
    deadline = time.monotonic() + 300
    while len(complete_lines(run)) < 6:
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = complete_lines(run)
    with open(run.paths.traces_path, "a") as file:  # what a kill in the middle of a write leaves
        file.write('{"id": "p9", "prompt": [{"ro')

    result = run.done("generate_traces")
    traces = [json.loads(line) for line in complete_lines(run)]
    assert complete_lines(run)[: len(kept)] == kept
    assert Counter(trace["id"] for trace in traces) == {
        f"p{number}": 1 for number in range(NUM_EVAL, NUM_EVAL + NUM_TRAINING) if number != NUM_EVAL + 7
    }
    assert (result["num_traces"], result["resumed"], result["failed"]) == (NUM_TRAINING - 1, len(kept), 1)
    assert result["generated_tokens"] == sum(len(trace["token_ids"]) for trace in traces)
    assert result["finish_reasons"] == Counter(trace["finish_reason"] for trace in traces)
    assert result["tokens_per_second"] > 0

    failures = [json.loads(line) for line in run.paths.trace_failures_path.read_text().splitlines()]
    assert [failure["id"] for failure in failures] == [f"p{NUM_EVAL + 7}"]
    assert "no room to answer" in failures[0]["reason"]


def test_traces_keep_the_servers_ids_and_the_closing_token(run) -> None:
    run.done("generate_traces")
    config = json.loads((run.paths.work_dir.resolve("models/toy-qwen3-moe") / "config.json").read_text())
    closing = config["eos_token_id"]
    for line in complete_lines(run):
        trace = json.loads(line)
        assert 0 < len(trace["token_ids"]) <= 64
        assert len(trace["prompt_token_ids"]) > 0
        assert max(trace["prompt_token_ids"] + trace["token_ids"]) < config["vocab_size"]
        if trace["finish_reason"] == "stop":
            assert trace["token_ids"][-1] in (closing if isinstance(closing, list) else [closing])
        else:
            assert len(trace["token_ids"]) == 64
        assert trace["reasoning"] or trace["content"]


def test_done_traces_are_not_made_again(run) -> None:
    run.done("generate_traces")
    before = run.paths.traces_path.read_bytes()
    result = run.done("generate_traces")
    assert run.paths.traces_path.read_bytes() == before
    assert result["resumed"] == NUM_TRAINING - 1


def test_changed_sampling_is_refused(run) -> None:
    run.set(temperature=1.5)
    ended = run.step("generate_traces")
    run.set(temperature=0.6)
    assert ended.returncode == 2
    assert "temperature: 0.6 -> 1.5" in ended.stderr


def test_too_many_failures_fail_the_step(target_runs, run) -> None:
    failing = target_runs.make("failing", [f"Hello {n}" for n in range(8)] + [TOO_LONG])
    ended = failing.step("generate_traces")
    assert ended.returncode == 1
    assert "1 of 5 prompts got no answer" in ended.stderr
