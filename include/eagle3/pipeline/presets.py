"""Presets: named sets of RunSpec values, and the one way from a preset and a user's wishes to a RunSpec. Control side.

Work directory and Python belong to the host and come with the overrides.
"""

from collections.abc import Mapping
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_spec import RunSpec, parse_run_spec

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "model_path": "models/smollm2-135m",
        "served_model_name": "smollm2-135m",
        "after_blocks": [1, 14, 26, 29],
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "max_model_len": 512,
        "extraction_batch_size": 8,
        "prompts_file": "prompts/smollm2-135m.jsonl",
        "num_samples": 96,
        "request_concurrency": 64,
        "max_new_tokens": 160,
        "temperature": 0.0,
        "top_p": 1.0,
        "draft_vocab_size": 4096,
        "epochs": 3,
        "learning_rate": 4e-3,
        "ttt_steps": 3,
        "train_seq_len": 512,
        "num_speculative_tokens": 3,
        "num_eval_prompts": 16,
        "eval_concurrency": 4,
    },
    "toy": {
        "model_path": "models/toy-qwen3-moe",
        "served_model_name": "toy-qwen3-moe",
        "reasoning_parser": "qwen3",
        "after_blocks": [1, 2, 3, 5],
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "max_model_len": 256,
        "extraction_batch_size": 8,
        "prompts_file": "prompts/toy-qwen3-moe.jsonl",
        "num_samples": 64,
        "request_concurrency": 32,
        "max_new_tokens": 128,
        "temperature": 0.0,
        "top_p": 1.0,
        "draft_vocab_size": 512,
        "epochs": 6,
        "learning_rate": 4e-3,
        "ttt_steps": 3,
        "train_seq_len": 256,
        "num_speculative_tokens": 3,
        "num_eval_prompts": 8,
        "eval_concurrency": 4,
    },
    "kimi-k2.5": {
        "model_path": "models/Kimi-K2.5",
        "served_model_name": "kimi-k2.5",
        "reasoning_parser": "kimi_k2",
        "trust_remote_code": True,
        "after_blocks": [1, 29, 57, 60],
        "tensor_parallel_size": 8,
        "gpu_memory_utilization": 0.80,
        "max_model_len": 4096,
        "extraction_batch_size": 8,
        # 64 shards, 547 GB: several files at once load up to four times as fast from a network disk.
        "server_args": [
            "--model-loader-extra-config",
            '{"enable_multithread_load": true, "num_threads": 8}',
            "--mm-encoder-tp-mode",
            "data",
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "kimi_k2",
        ],
        "prompts_file": "prompts/kimi-k2.5.jsonl",
        "num_samples": 10_000,
        "request_concurrency": 64,
        "max_new_tokens": 3072,
        "temperature": 1.0,
        "top_p": 0.95,
        "draft_vocab_size": 32_000,
        "epochs": 3,
        "learning_rate": 1e-4,
        "ttt_steps": 3,
        "train_seq_len": 8192,
        "num_speculative_tokens": 3,
        "num_eval_prompts": 128,
        "eval_concurrency": 8,
    },
}

# The nightly DAG's: the same, with all of a prompts file that grows.
NIGHTLY_SUFFIX = "-nightly"
PRESETS.update({name + NIGHTLY_SUFFIX: {**values, "num_samples": 0} for name, values in list(PRESETS.items())})


def resolve(preset: str, overrides: Mapping[str, Any]) -> RunSpec:
    """The run spec of `preset` with `overrides` laid over it; None means "from the preset".

    `work_dir` and `host_python` must be among the overrides. Raises ConfigError for an unknown preset (with the known
    ones) and for every wrong or unknown value.
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
    wishes = {name: value for name, value in overrides.items() if value is not None}
    return parse_run_spec({**PRESETS[preset], **wishes, "preset": preset})
