"""Preflight's checks of the target's folder, on the GPU host. Nothing is loaded: JSON files and shard headers only."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.remote.finding import Finding, ok
from eagle3.remote.step import Step
from eagle3.remote.weight_files import LFS_POINTER, read_weight_files

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json")
CHAT_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class TargetConfig:
    """What config.json says of the language model (its `text_config`, where the target is multimodal)."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    max_positions: int | None
    scales_positions: bool


def read_target_config(model_dir: Path) -> TargetConfig:
    """Raises ConfigError naming the missing file or fields."""
    config = _read_json(model_dir / "config.json")
    text = config.get("text_config") or config
    needed = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
    if absent := [name for name in needed if not isinstance(text.get(name), int)]:
        raise ConfigError(f"{model_dir / 'config.json'} lacks {', '.join(absent)}: is it a language model's?")
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    return TargetConfig(
        architecture=", ".join(config.get("architectures") or ["unknown"]),
        num_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        vocab_size=text["vocab_size"],
        num_attention_heads=text["num_attention_heads"],
        max_positions=text.get("max_position_embeddings"),
        scales_positions=rope.get("rope_type", rope.get("type", "default")) != "default",
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(f"{path} is not there: is model_path the folder of the target?")
    content = path.read_bytes()
    if content.startswith(LFS_POINTER):
        raise ConfigError(f"{path} is a git LFS pointer, not the file itself: run git lfs pull in {path.parent}")
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a JSON object ({error}): copy or download it again") from None


def check_config(step: Step) -> Finding:
    target = read_target_config(step.model_dir)
    return ok(
        f"{target.architecture}, {target.num_layers} blocks, hidden size {target.hidden_size}, "
        f"vocabulary {target.vocab_size}"
    )


def check_weights(step: Step) -> Finding:
    files = read_weight_files(step.model_dir)
    return ok(f"{len(files)} shards, {sum(file.num_bytes for file in files) / 1e9:.4g} GB, headers match the sizes")


def check_tokenizer(step: Step) -> Finding:
    there = [name for name in TOKENIZER_FILES if (step.model_dir / name).exists()]
    if not there:
        raise ConfigError(f"{step.model_dir} has no tokenizer (one of {', '.join(TOKENIZER_FILES)})")
    path = step.model_dir / there[0]
    if path.suffix == ".json":
        _read_json(path)
    elif path.stat().st_size < 1024:
        raise ConfigError(f"{path} has only {path.stat().st_size} bytes: it is cut off or a git LFS pointer")
    return ok(there[0])


def check_chat_template(step: Step) -> Finding:
    """The server refuses chat requests, and so every trace, without one."""
    if any(argument.split("=")[0] == "--chat-template" for argument in step.spec.server_args):
        return ok("given in server_args")
    for name in CHAT_TEMPLATE_FILES:
        if (step.model_dir / name).exists():
            return ok(name)
    tokenizer_config = step.model_dir / "tokenizer_config.json"
    if tokenizer_config.exists() and _read_json(tokenizer_config).get("chat_template"):
        return ok(tokenizer_config.name)
    raise ConfigError(
        f"{step.model_dir} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
        "add one, or --chat-template=FILE to server_args"
    )


def check_taps(step: Step) -> Finding:
    num_layers, taps = read_target_config(step.model_dir).num_layers, step.spec.after_blocks
    if taps[-1] != num_layers - 1:
        raise ConfigError(
            f"after_blocks {taps} must end with {num_layers - 1}, the last of the target's {num_layers} blocks: its "
            "output is the label source"
        )
    return ok(f"after blocks {taps} of 0..{num_layers - 1}, engine ids {step.spec.engine_layer_ids}")


def check_draft_vocabulary(step: Step) -> Finding:
    vocab_size, draft_vocab_size = read_target_config(step.model_dir).vocab_size, step.spec.draft_vocab_size
    if draft_vocab_size > vocab_size:
        raise ConfigError(f"draft_vocab_size {draft_vocab_size} is larger than the target's vocabulary ({vocab_size})")
    return ok(f"{draft_vocab_size} of the target's {vocab_size} tokens")


def check_sequence_length(step: Step) -> Finding:
    target, longest = read_target_config(step.model_dir), step.spec.max_model_len
    if target.max_positions is None or target.scales_positions:
        return ok(f"{longest} tokens; the target states no plain limit")
    if longest > target.max_positions:
        raise ConfigError(
            f"max_model_len {longest} is more than the target's {target.max_positions} positions "
            "(max_position_embeddings): vLLM refuses to start"
        )
    return ok(f"{longest} of the target's {target.max_positions} positions")


def check_tensor_parallel(step: Step) -> Finding:
    heads, ranks = read_target_config(step.model_dir).num_attention_heads, step.spec.tensor_parallel_size
    if heads % ranks:
        raise ConfigError(f"tensor_parallel_size {ranks} does not divide the target's {heads} attention heads")
    return ok(f"{heads} attention heads on {ranks} ranks")
