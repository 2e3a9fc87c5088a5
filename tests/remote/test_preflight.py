"""preflight as the host runs it, on small made-up targets: each broken set-up is refused with its own words."""

import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import RunDir, read_json, write_json

NUM_SHARDS, NUM_BLOCKS, VOCAB_SIZE, HEADS, POSITIONS = 4, 6, 512, 4, 1024
PORT = 8392


class Setup:
    """A run whose preflight passes, to be broken."""

    def __init__(self, work_dir: Path, host_python: str) -> None:
        self.host_python = host_python
        self.work_dir = work_dir
        self.model_dir = work_dir / "models" / "tiny"
        self.run_dir = RunDir(work_dir / "runs" / "r")
        self.device = "cpu"
        self.spec: dict[str, Any] = {
            "work_dir": str(work_dir),
            "host_python": host_python,
            "model_path": "models/tiny",
            "served_model_name": "tiny",
            "after_blocks": [0, 2, 4, NUM_BLOCKS - 1],
            "max_model_len": 256,
            "max_new_tokens": 128,
            "server_port": PORT,
            "prompts_file": "prompts.jsonl",
            "num_samples": 20,
            "num_eval_prompts": 4,
            "draft_vocab_size": 64,
        }
        self.config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": NUM_BLOCKS,
            "hidden_size": 32,
            "vocab_size": VOCAB_SIZE,
            "num_attention_heads": HEADS,
            "max_position_embeddings": POSITIONS,
        }
        self.model_dir.mkdir(parents=True)
        weight_map = {f"layer.{n}.weight": self.shard(n).name for n in range(1, NUM_SHARDS + 1)}
        write_json(self.index, {"metadata": {"total_size": 0}, "weight_map": weight_map})
        for tensor, name in weight_map.items():
            (self.model_dir / name).write_bytes(safetensors_file(tensor))
        write_json(self.model_dir / "tokenizer.json", {"model": {}})
        write_json(self.model_dir / "tokenizer_config.json", {"chat_template": "{{ messages }}"})
        self.write_prompts(24)

    def shard(self, number: int) -> Path:
        return self.model_dir / f"model-{number:05d}-of-{NUM_SHARDS:05d}.safetensors"

    @property
    def index(self) -> Path:
        return self.model_dir / "model.safetensors.index.json"

    def write_prompts(self, count: int) -> None:
        lines = [json.dumps({"id": str(n), "prompt": f"Say {n}."}) for n in range(count)]
        (self.work_dir / "prompts.jsonl").write_text("\n".join(lines))

    def run(self) -> subprocess.CompletedProcess[str]:
        write_json(self.run_dir.run_spec_path, self.spec)
        if self.model_dir.exists() and not (self.model_dir / "config.json").exists():
            write_json(self.model_dir / "config.json", self.config)
        include = Path(__file__).resolve().parents[2] / "include"
        return subprocess.run(
            [self.host_python, "-m", "eagle3.remote", "preflight", "--run-dir", str(self.run_dir.root)],
            env={**os.environ, "PYTHONPATH": str(include), "EAGLE3_DEVICE": self.device},
            capture_output=True,
            text=True,
        )


def safetensors_file(tensor: str, num_values: int = 64) -> bytes:
    data = bytes(num_values * 2)
    header = json.dumps({tensor: {"dtype": "BF16", "shape": [num_values], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def setup(tmp_path: Path, host_python: str) -> Setup:
    return Setup(tmp_path, host_python)


def test_a_good_run_passes(setup: Setup) -> None:
    finished = setup.run()
    assert finished.returncode == 0, finished.stderr
    result = read_json(setup.run_dir.result_path("preflight"))
    assert {check["verdict"] for check in result["checks"]} <= {"ok", "warning"}
    assert len(result["checks"]) == 16
    assert result["num_shards"] == NUM_SHARDS
    assert result["weight_bytes"] == sum(setup.shard(n).stat().st_size for n in range(1, NUM_SHARDS + 1))
    assert (result["num_layers"], result["hidden_size"], result["vocab_size"]) == (NUM_BLOCKS, 32, VOCAB_SIZE)
    assert {"python", "torch", "speculators"} <= set(result["versions"])


def test_a_multimodal_target_is_read_through_its_text_config(setup: Setup) -> None:
    setup.config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": setup.config}
    finished = setup.run()
    assert finished.returncode == 0, finished.stderr
    assert read_json(setup.run_dir.result_path("preflight"))["num_layers"] == NUM_BLOCKS


def truncated_shard(setup: Setup) -> None:
    os.truncate(setup.shard(2), setup.shard(2).stat().st_size - 10)


def missing_shard(setup: Setup) -> None:
    setup.shard(3).unlink()


def lfs_pointer(setup: Setup) -> None:
    setup.shard(1).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000000000\n")


def shard_of_another_model(setup: Setup) -> None:
    setup.shard(4).write_bytes(safetensors_file("something.else"))


def empty_shard(setup: Setup) -> None:
    setup.shard(1).write_bytes(b"")


def zeroed_shard(setup: Setup) -> None:
    setup.shard(2).write_bytes(bytes(setup.shard(2).stat().st_size))


def gap_in_the_numbers_without_an_index(setup: Setup) -> None:
    setup.index.unlink()
    setup.shard(3).unlink()


def half_an_index(setup: Setup) -> None:
    setup.index.write_bytes(setup.index.read_bytes()[:40])


def no_weights(setup: Setup) -> None:
    setup.index.unlink()
    for number in range(1, NUM_SHARDS + 1):
        setup.shard(number).rename(setup.shard(number).with_suffix(".bin"))


def no_tokenizer(setup: Setup) -> None:
    (setup.model_dir / "tokenizer.json").unlink()


def tokenizer_lfs_pointer(setup: Setup) -> None:
    (setup.model_dir / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")


def no_chat_template(setup: Setup) -> None:
    write_json(setup.model_dir / "tokenizer_config.json", {})


def config_of_something_else(setup: Setup) -> None:
    setup.config = {"architectures": ["CLIPModel"], "hidden_size": 32}


def taps_one_too_early(setup: Setup) -> None:
    setup.spec["after_blocks"] = [0, 2, 3, NUM_BLOCKS - 2]


def taps_beyond_the_end(setup: Setup) -> None:
    setup.spec["after_blocks"] = [0, 2, 4, NUM_BLOCKS]


def draft_vocabulary_too_large(setup: Setup) -> None:
    setup.spec["draft_vocab_size"] = VOCAB_SIZE + 1


def sequences_too_long(setup: Setup) -> None:
    setup.spec["max_model_len"] = POSITIONS + 1


def ranks_that_do_not_divide_the_heads(setup: Setup) -> None:
    setup.spec["tensor_parallel_size"] = HEADS - 1


def more_ranks_than_cores(setup: Setup) -> None:
    setup.config["num_attention_heads"] = 64
    setup.spec["tensor_parallel_size"] = 64


def too_few_prompts(setup: Setup) -> None:
    setup.write_prompts(23)


def no_prompts(setup: Setup) -> None:
    (setup.work_dir / "prompts.jsonl").unlink()


def states_larger_than_any_disk(setup: Setup) -> None:
    setup.config["hidden_size"] = 2**40


def argument_that_the_run_sets(setup: Setup) -> None:
    setup.spec["server_args"] = ["--port=9"]


BROKEN: dict[Callable[[Setup], None], tuple[str, str]] = {
    truncated_shard: ("weights", "model-00002-of-00004.safetensors is cut off"),
    missing_shard: ("weights", "model-00003-of-00004.safetensors is missing"),
    lfs_pointer: ("weights", "model-00001-of-00004.safetensors is a git LFS pointer"),
    shard_of_another_model: ("weights", "lacks 1 tensors that model.safetensors.index.json places there"),
    empty_shard: ("weights", "is cut inside its header or no safetensors file (0 bytes)"),
    zeroed_shard: ("weights", "is cut inside its header or no safetensors file"),
    gap_in_the_numbers_without_an_index: ("weights", "model-00003-of-00004.safetensors is missing"),
    half_an_index: ("weights", "is not a safetensors index"),
    no_weights: ("weights", "has no *.safetensors files"),
    no_tokenizer: ("tokenizer", "has no tokenizer"),
    tokenizer_lfs_pointer: ("tokenizer", "tokenizer.json is a git LFS pointer"),
    no_chat_template: ("chat template", "has no chat template"),
    config_of_something_else: ("target config", "lacks num_hidden_layers, vocab_size, num_attention_heads"),
    taps_one_too_early: ("taps", "must end with 5"),
    taps_beyond_the_end: ("taps", "must end with 5"),
    draft_vocabulary_too_large: ("draft vocabulary", "513 is larger than the target's vocabulary (512)"),
    sequences_too_long: ("sequence length", "1025 is more than the target's 1024 positions"),
    ranks_that_do_not_divide_the_heads: ("tensor parallel", "3 does not divide the target's 4 attention heads"),
    more_ranks_than_cores: ("devices", "tensor_parallel_size 64 needs as many cores"),
    too_few_prompts: ("prompts", "has 23 distinct prompts"),
    no_prompts: ("prompts", "does not exist"),
    states_larger_than_any_disk: ("disk", "hidden states need at least"),
    argument_that_the_run_sets: ("server arguments", "must not contain --port"),
}


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda function: function.__name__)
def test_a_broken_run_is_refused_with_its_reason(setup: Setup, break_it: Callable[[Setup], None]) -> None:
    check, reason = BROKEN[break_it]
    break_it(setup)
    finished = setup.run()
    assert finished.returncode == 2, finished.stdout + finished.stderr
    lines = [line for line in finished.stderr.splitlines() if line.startswith("  ")]
    assert any(line.startswith(f"  {check}: ") and reason in line for line in lines), finished.stderr
    assert not setup.run_dir.result_path("preflight").exists()


def test_a_gpu_run_needs_gpus(setup: Setup) -> None:
    setup.device = "cuda"
    setup.config["num_attention_heads"] = setup.spec["tensor_parallel_size"] = 64
    finished = setup.run()
    assert finished.returncode == 2
    assert "  devices: tensor_parallel_size 64 needs as many GPUs" in finished.stderr


def test_a_port_held_by_another_process_is_refused(setup: Setup) -> None:
    with socket.create_server(("127.0.0.1", PORT)):
        finished = setup.run()
    assert finished.returncode == 2
    assert f"  port: port {PORT} is held by process {os.getpid()}" in finished.stderr


def test_all_causes_come_together_and_each_once(setup: Setup) -> None:
    taps_one_too_early(setup)
    too_few_prompts(setup)
    missing_shard(setup)
    finished = setup.run()
    lines = [line.split(":")[0].strip() for line in finished.stderr.splitlines() if line.startswith("  ")]
    assert lines == ["weights", "taps", "prompts"]


def test_a_run_with_traces_is_judged_by_their_length(setup: Setup) -> None:
    trace = {"id": "a", "prompt_token_ids": [1] * 30, "token_ids": [2] * 70, "finish_reason": "stop"}
    setup.run_dir.traces_path.parent.mkdir(parents=True)
    setup.run_dir.traces_path.write_text(json.dumps(trace) + "\n")
    finished = setup.run()
    assert finished.returncode == 0, finished.stderr
    disk = next(line for line in finished.stdout.splitlines() if "disk: " in line)
    # 20 samples x 100 tokens x 4 taps x hidden size 32 x 2 bytes
    assert "need up to 0.000512 GB (1 traces)" in disk
