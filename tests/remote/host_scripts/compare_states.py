"""How far the extracted states are from transformers' own in float32, as JSON: relative errors, one a slot.

Runs in the host environment: `python compare_states.py MODEL_DIR ENGINE_LAYER_IDS STATE_FILE` (ids as `1,4,6,8`).
Beside them, what bfloat16 alone costs, and how far the same states are from the layer before.
"""

import json
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def reference_states(model_dir: str, dtype: torch.dtype, token_ids: torch.Tensor) -> list[torch.Tensor]:
    """By engine layer id: [tokens, hidden_size].

    The final block's output before the norm is not among transformers' `hidden_states`: it is caught at the norm.
    """
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    before_norm: list[torch.Tensor] = []
    model.get_decoder().norm.register_forward_pre_hook(lambda _module, inputs: before_norm.append(inputs[0]))
    with torch.no_grad():
        output = model(token_ids[None], output_hidden_states=True)
    return [states[0].float() for states in (*output.hidden_states[:-1], before_norm[0])]


def relative_error(states: torch.Tensor, reference: torch.Tensor) -> float:
    """The median over tokens: where two experts tie, rounding alone sends a token elsewhere."""
    return ((states - reference).norm(dim=-1) / reference.norm(dim=-1)).median().item()


def main() -> None:
    model_dir, layer_ids = sys.argv[1], [int(layer_id) for layer_id in sys.argv[2].split(",")]
    extracted = load_file(sys.argv[3])
    exact = reference_states(model_dir, torch.float32, extracted["token_ids"])
    rounded = reference_states(model_dir, torch.bfloat16, extracted["token_ids"])
    slots = zip(extracted["hidden_states"].float().unbind(1), layer_ids, strict=True)
    errors = [
        {
            "error": relative_error(states, exact[layer_id]),
            "error_of_bfloat16": relative_error(rounded[layer_id], exact[layer_id]),
            "error_to_layer_before": relative_error(states, exact[layer_id - 1]),
        }
        for states, layer_id in slots
    ]
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
