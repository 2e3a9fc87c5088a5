"""train_draft as the host runs it: real training on states that a draft can learn; killed, resumed, re-run."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import RunDir, read_json, write_json

pytestmark = pytest.mark.live

EPOCHS = 4
Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def run_dir(
    tmp_path_factory: pytest.TempPathFactory, host_python: str, repo_root: Path, host_environment: dict[str, str]
) -> RunDir:
    """A run whose traces, states and vocabulary are there."""
    root = tmp_path_factory.mktemp("host")
    run = RunDir(root / "runs" / "r")
    write_json(
        run.run_spec_path,
        {
            "work_dir": str(root),
            "host_python": host_python,
            "model_path": "models/chain",
            "served_model_name": "chain",
            "after_blocks": [0, 2, 4, 5],
            "max_model_len": 64,
            "max_new_tokens": 32,
            "prompts_file": "prompts.jsonl",
            "num_samples": 40,
            "draft_vocab_size": 96,
            "epochs": EPOCHS,
            "learning_rate": 0.01,
            "train_seq_len": 256,
        },
    )
    maker = repo_root / "tests" / "remote" / "host_scripts" / "tiny_draft_run.py"
    subprocess.run([host_python, str(maker), str(run.root)], env=host_environment, check=True)
    subprocess.run(
        [host_python, "-m", "eagle3.remote", "build_vocab_mapping", "--run-dir", str(run.root)],
        env=host_environment,
        check=True,
    )
    return run


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def start(run_dir: RunDir, job_dir: Path, host_python: str, host_environment: dict[str, str]) -> Start:
    def start_step(step: str) -> subprocess.Popen[bytes]:
        (job_dir / "events.jsonl").unlink(missing_ok=True)
        with open(job_dir / "log", "wb") as log:
            return subprocess.Popen(
                [host_python, "-m", "eagle3.remote", step, "--run-dir", str(run_dir.root)],
                env={**host_environment, "EAGLE3_JOB_DIR": str(job_dir)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return start_step


def events(job_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (job_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def recorded_epochs(run: RunDir) -> list[dict[str, Any]]:
    path = run.checkpoints_dir / "epochs.json"
    epochs: list[dict[str, Any]] = read_json(path)["epochs"] if path.exists() else []
    return epochs


def finish(process: subprocess.Popen[bytes], job_dir: Path) -> None:
    assert process.wait(timeout=300) == 0, (job_dir / "log").read_text()[-3000:]


def test_killed_training_resumes_after_its_last_whole_epoch(run_dir: RunDir, job_dir: Path, start: Start) -> None:
    process = start("train_draft")
    deadline = time.monotonic() + 240
    while not recorded_epochs(run_dir):
        assert process.poll() is None, (job_dir / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)  # the step alone: its trainer must go by itself
    process.wait()
    first = recorded_epochs(run_dir)
    assert not run_dir.best_checkpoint_path.exists()

    half_written = run_dir.checkpoints_dir / str(EPOCHS + 2)  # the trainer would trust the largest number
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half a checkpoint")

    finish(start("train_draft"), job_dir)
    epochs = recorded_epochs(run_dir)
    assert [epoch["epoch"] for epoch in epochs] == list(range(EPOCHS))
    assert epochs[: len(first)] == first  # kept, not trained again
    assert not half_written.exists()
    progress = events(job_dir, "progress")
    assert progress[0]["done"] == sum(epoch["steps"] for epoch in first) + 1
    assert progress[-1]["done"] == progress[-1]["total"] == sum(epoch["steps"] for epoch in epochs)


def test_best_checkpoint_is_the_one_with_the_longest_acceptance(run_dir: RunDir) -> None:
    result = read_json(run_dir.result_path("train_draft"))
    coverage = read_json(run_dir.result_path("build_vocab_mapping"))["held_out_coverage"]
    lengths = [1 + sum(a * coverage ** (k + 1) for k, a in enumerate(epoch["full_acc"])) for epoch in result["epochs"]]
    best = lengths.index(max(lengths))
    assert result["best_epoch"] == best
    assert lengths[best] > 1.5  # it has learnt the chain
    record = read_json(run_dir.best_checkpoint_path)
    assert record["epoch"] == best
    assert record["simulated_acceptance_length"] == pytest.approx(lengths[best], abs=1e-3)
    assert record["checkpoint"] == result["checkpoint"] == str(run_dir.checkpoints_dir / str(best))
    config = read_json(Path(record["checkpoint"]) / "config.json")
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config["transformer_layer_config"]["layer_types"] == ["full_attention"]
    assert (result["train_rows"], result["validation_rows"]) == (36, 4)


def test_finished_training_is_accepted(run_dir: RunDir, job_dir: Path, start: Start) -> None:
    before = read_json(run_dir.result_path("train_draft"))
    finish(start("train_draft"), job_dir)
    assert read_json(run_dir.result_path("train_draft")) == before
    assert events(job_dir, "progress") == []


def test_missing_states_are_refused_before_training(run_dir: RunDir, job_dir: Path, start: Start) -> None:
    states = run_dir.hidden_states_dir / "hs_3.safetensors"
    aside = states.rename(states.with_suffix(".aside"))
    try:
        assert start("train_draft").wait(timeout=120) == 2
    finally:
        aside.rename(states)
    assert "row 3" in events(job_dir, "finished")[0]["error"]["message"]


def test_other_settings_start_again(run_dir: RunDir, job_dir: Path, start: Start) -> None:
    spec = read_json(run_dir.run_spec_path)
    write_json(run_dir.run_spec_path, {**spec, "epochs": 1, "learning_rate": 0.002})
    finish(start("train_draft"), job_dir)
    assert any("training starts again" in event["text"] for event in events(job_dir, "warning"))
    assert [epoch["epoch"] for epoch in recorded_epochs(run_dir)] == [0]
    assert read_json(run_dir.best_checkpoint_path)["epoch"] == 0


def test_a_mapping_of_other_traces_is_refused(run_dir: RunDir, job_dir: Path, start: Start) -> None:
    write_json(run_dir.run_spec_path, {**read_json(run_dir.run_spec_path), "draft_vocab_size": 64})
    assert start("train_draft").wait(timeout=120) == 2
    assert "run build_vocab_mapping again" in events(job_dir, "finished")[0]["error"]["message"]
