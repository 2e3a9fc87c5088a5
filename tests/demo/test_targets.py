"""The demonstration's targets, made by the real command."""

import json
import re
import signal
import struct
import subprocess
import sys
import time
from itertools import islice
from math import prod
from pathlib import Path

import pytest

from eagle3.demo.targets.grammar import distinct_questions, examples
from eagle3.demo.targets.questions import questions

NUM_SHARDS = {"smollm2-135m": 64, "toy-qwen3-moe": 8, "toy-mla": 4}


def _make(python: str, environment: dict[str, str], name: str, work_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "eagle3.demo.targets", name, "--work-dir", str(work_dir)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


def _shard_header(path: Path) -> dict[str, dict]:
    """Tensor name -> {dtype, shape, data_offsets}; asserts that the file is exactly as long as they say."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(header_bytes))
    tensors.pop("__metadata__", None)
    assert path.stat().st_size == 8 + header_bytes + max(tensor["data_offsets"][1] for tensor in tensors.values())
    return tensors


def _assert_whole(work_dir: Path, name: str) -> None:
    """Every tensor of the index is in its shard and in no other, in bf16, and the total is right."""
    model_dir = work_dir / "models" / name
    shards = sorted(path.name for path in model_dir.glob("*.safetensors"))
    index = json.loads((model_dir / "model.safetensors.index.json").read_text())
    found, num_bytes = {}, 0
    for shard in shards:
        for tensor, entry in _shard_header(model_dir / shard).items():
            assert tensor not in found
            found[tensor] = shard
            if entry["dtype"] == "BF16":
                assert entry["data_offsets"][1] - entry["data_offsets"][0] == 2 * prod(entry["shape"])
            num_bytes += entry["data_offsets"][1] - entry["data_offsets"][0]
    assert len(shards) == NUM_SHARDS[name]
    assert found == index["weight_map"]
    assert num_bytes == index["metadata"]["total_size"]
    config = json.loads((model_dir / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert (model_dir / "chat_template.jinja").exists()
    assert not list(work_dir.glob("models/.*.partial"))


def _assert_prompts_are_distinct(work_dir: Path, name: str) -> None:
    records = [json.loads(line) for line in (work_dir / "prompts" / f"{name}.jsonl").read_text().splitlines()]
    assert len(records) >= 256
    assert len({record["id"] for record in records}) == len(records)
    assert len({record["prompt"].strip().lower() for record in records}) == len(records)


def test_questions_are_distinct_and_always_the_same() -> None:
    assert len(set(questions())) == len(questions()) >= 256
    assert questions() == questions()
    assert len(set(distinct_questions(seed=2, count=512))) == 512
    assert distinct_questions(seed=2, count=512) == distinct_questions(seed=2, count=512)


def test_the_grammar_adds_compares_and_reverses_rightly() -> None:
    for example in islice(examples(seed=5), 600):
        numbers = [int(number) for number in re.findall(r"\d+", example.question)]
        if "+" in example.question or "more. How" in example.question:
            assert re.findall(r"\d+", example.answer) == [str(sum(numbers))]
            assert f"this gives {sum(numbers)}." in example.reasoning
        elif "larger" in example.question:
            assert example.answer.endswith(f" {max(numbers)}.")
        elif "even or odd" in example.question:
            assert example.answer.endswith("odd." if numbers[0] % 2 else "even.")
        elif "reverse" in example.question:
            words = example.question.removesuffix(".").split(": ")[1].split(", ")
            assert example.answer == f"In reverse order: {', '.join(words[::-1])}."


def test_an_unknown_name_lists_the_known_ones(host_environment: dict[str, str], tmp_path: Path) -> None:
    result = _make(sys.executable, host_environment, "llama", tmp_path)
    assert result.returncode == 2
    assert all(name in result.stderr for name in NUM_SHARDS)


def test_a_work_dir_that_is_a_file_is_named(host_environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = _make(sys.executable, host_environment, "toy-mla", file)
    assert result.returncode == 2
    assert str(file) in result.stderr
    assert "--work-dir" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_torch_it_asks_for_the_host_environment(host_environment: dict[str, str], tmp_path: Path) -> None:
    result = _make(sys.executable, host_environment, "toy-mla", tmp_path)
    assert result.returncode == 2
    assert "host environment" in result.stderr
    assert not (tmp_path / "models" / "toy-mla").exists()


@pytest.mark.live
@pytest.mark.parametrize("name", NUM_SHARDS)
def test_a_target_is_whole_and_made_once(
    name: str, host_python: str, host_environment: dict[str, str], toy_work_dir: Path
) -> None:
    made = _make(host_python, host_environment, name, toy_work_dir)
    assert made.returncode == 0, made.stderr
    _assert_whole(toy_work_dir, name)
    _assert_prompts_are_distinct(toy_work_dir, name)

    config_path = toy_work_dir / "models" / name / "config.json"
    before = config_path.stat()
    started = time.monotonic()
    again = _make(host_python, host_environment, name, toy_work_dir)
    assert again.returncode == 0, again.stderr
    assert "already" in again.stdout
    assert time.monotonic() - started < 5  # under a second when the machine is not busy; making takes longer
    assert config_path.stat().st_ino == before.st_ino


@pytest.mark.live
def test_a_killed_maker_leaves_nothing_that_counts(
    host_python: str, host_environment: dict[str, str], tmp_path: Path
) -> None:
    command = [host_python, "-m", "eagle3.demo.targets", "toy-mla", "--work-dir", str(tmp_path)]
    aside = tmp_path / "models" / ".toy-mla.partial"
    with subprocess.Popen(command, env=host_environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as maker:
        deadline = time.monotonic() + 120
        while not aside.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        maker.send_signal(signal.SIGKILL)
    assert aside.exists()
    assert not (tmp_path / "models" / "toy-mla").exists()
    (aside / "left-over.safetensors").touch()

    again = _make(host_python, host_environment, "toy-mla", tmp_path)
    assert again.returncode == 0, again.stderr
    _assert_whole(tmp_path, "toy-mla")
    _assert_prompts_are_distinct(tmp_path, "toy-mla")
    assert not (tmp_path / "models" / "toy-mla" / "left-over.safetensors").exists()
