"""The host's history.jsonl as steps write and read it: a real load in vLLM, and what the next run expects."""

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import WorkDir, read_json
from eagle3.remote.weight_files import shard_sizes


@pytest.fixture
def extract(toy_work_dir: Path, host_python: str, host_environment: dict[str, str], tmp_path: Path) -> Any:
    """`extract(job_id)` runs the step as the supervisor does; returns the job's folder."""
    (tmp_path / "models").symlink_to(toy_work_dir / "models")
    run_dir = WorkDir(tmp_path).run_dir("run")
    run_dir.traces_path.parent.mkdir(parents=True)
    chance = random.Random(7)
    traces = [
        {"id": f"t{index}", "prompt": "", "prompt_token_ids": [5, 6], "token_ids": chance.choices(range(3, 200), k=20)}
        for index in range(6)
    ]
    text = {"reasoning": None, "content": "", "finish_reason": "stop"}
    run_dir.traces_path.write_text("".join(json.dumps({**trace, **text}) + "\n" for trace in traces))
    blocks = read_json(tmp_path / "models" / "toy-qwen3-moe" / "config.json")["num_hidden_layers"]
    spec = {
        "after_blocks": [0, 1, blocks - 2, blocks - 1],
        "work_dir": str(tmp_path),
        "host_python": host_python,
        "model_path": "models/toy-qwen3-moe",
        "served_model_name": "toy",
        "max_model_len": 256,
        "max_new_tokens": 128,
        "extraction_batch_size": 4,
        "prompts_file": "prompts.jsonl",
        "num_samples": 6,
        "draft_vocab_size": 64,
    }

    def run(job_id: str, **values: Any) -> Path:
        run_dir.run_spec_path.write_text(json.dumps({**spec, **values}))
        job_dir = WorkDir(tmp_path).job_dir(job_id)
        job_dir.mkdir(parents=True)
        command = [host_python, "-m", "eagle3.remote", "extract_hidden_states", "--run-dir", str(run_dir.root)]
        environment = {**host_environment, "EAGLE3_JOB_DIR": str(job_dir)}
        with open(job_dir / "log", "wb") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True, timeout=300)
        return job_dir

    return run


def expected(job_dir: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in (job_dir / "events.jsonl").read_text().splitlines()]
    return next(event for event in events if event["kind"] == "expected")


def test_a_run_expects_what_the_last_one_took(extract: Any, tmp_path: Path) -> None:
    first = extract("first")
    sizes = expected(first)["shard_bytes"]
    shards = sorted((tmp_path / "models" / "toy-qwen3-moe").glob("*.safetensors"))
    assert sizes == [path.stat().st_size for path in shards]
    assert expected(first)["last_times"] == {}
    with open(tmp_path / "history.jsonl", "a") as history:
        history.write('{"v": 2, "step": "cut by a full di')
    times = expected(extract("second"))["last_times"]
    said = re.search(r"Loading weights took ([\d.]+) seconds", (first / "log").read_text())
    assert said is not None
    assert times["loading_weights"] == {"seconds": float(said[1]), "done": len(sizes), "unit": "shards"}
    generating = times["generating"]
    assert (generating["done"], generating["unit"]) == (6 * 22, "tokens")
    assert 0 < generating["seconds"] < 100
    assert expected(extract("another-target", served_model_name="other"))["last_times"] == {}


def test_shards_load_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    """vLLM's order: 2 before 10, padded or not."""
    for number in (1, 2, 10):
        (tmp_path / f"part-{number}.safetensors").write_bytes(b"x" * number)
    assert shard_sizes(tmp_path) == [1, 2, 10]
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert shard_sizes(tmp_path) == []
