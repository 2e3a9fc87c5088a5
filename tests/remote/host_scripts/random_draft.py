"""Makes an EAGLE-3 head with random weights that fits a target, in the format that speculators saves.

Runs in the host environment: `python random_draft.py MODEL_DIR AUX_LAYER_IDS CHECKPOINT_DIR` (ids as `1,5,7`).
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

DRAFT_VOCAB_SIZE, INTERMEDIATE_SIZE = 64, 128


def main() -> None:
    model_dir, checkpoint = Path(sys.argv[1]), Path(sys.argv[3])
    target = json.loads((model_dir / "config.json").read_text())
    hidden, vocab = target["hidden_size"], target["vocab_size"]
    heads, kv_heads = (
        target["num_attention_heads"] * target["head_dim"],
        target["num_key_value_heads"] * target["head_dim"],
    )
    shapes = {
        "embed_tokens": (vocab, hidden),
        "fc": (hidden, 3 * hidden),
        "lm_head": (DRAFT_VOCAB_SIZE, hidden),
        "layers.0.mlp.gate_proj": (INTERMEDIATE_SIZE, hidden),
        "layers.0.mlp.up_proj": (INTERMEDIATE_SIZE, hidden),
        "layers.0.mlp.down_proj": (hidden, INTERMEDIATE_SIZE),
        "layers.0.self_attn.q_proj": (heads, 2 * hidden),
        "layers.0.self_attn.k_proj": (kv_heads, 2 * hidden),
        "layers.0.self_attn.v_proj": (kv_heads, 2 * hidden),
        "layers.0.self_attn.o_proj": (hidden, heads),
    }
    norms = ("norm", *(f"layers.0.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")))
    torch.manual_seed(0)
    drafted = torch.arange(DRAFT_VOCAB_SIZE) * (vocab // DRAFT_VOCAB_SIZE)
    weights = {f"{name}.weight": (torch.randn(shape) * 0.05).to(torch.bfloat16) for name, shape in shapes.items()}
    weights |= {f"{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in norms}
    weights |= {"d2t": drafted - torch.arange(DRAFT_VOCAB_SIZE), "t2d": torch.isin(torch.arange(vocab), drafted)}
    checkpoint.mkdir(parents=True)
    save_file(weights, checkpoint / "model.safetensors")
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [int(layer_id) for layer_id in sys.argv[2].split(",")],
        "norm_before_residual": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": target["architectures"], "name_or_path": str(model_dir)},
        },
        "transformer_layer_config": {
            **{
                name: target[name] for name in ("head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads")
            },
            **{name: target[name] for name in ("rms_norm_eps", "vocab_size", "max_position_embeddings")},
            "intermediate_size": INTERMEDIATE_SIZE,
            "model_type": "llama",
            "hidden_act": "silu",
            "num_hidden_layers": 1,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": False,
        },
    }
    (checkpoint / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
