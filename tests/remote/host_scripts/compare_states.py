"""How far the extracted states are from transformers' own, as JSON: the relative error of each slot, and between slots.

Runs in the host environment: `python compare_states.py MODEL_DIR ENGINE_LAYER_IDS STATE_FILE` (ids as `1,4,6,8`).
The final block's output before the norm is not among transformers' `hidden_states`: it is caught at the norm.
"""

import json
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def relative_error(states: torch.Tensor, reference: torch.Tensor) -> float:
    return ((states.float() - reference.float()).norm() / reference.float().norm()).item()


def main() -> None:
    model_dir, layer_ids = sys.argv[1], [int(layer_id) for layer_id in sys.argv[2].split(",")]
    extracted = load_file(sys.argv[3])
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    before_norm: list[torch.Tensor] = []
    model.get_decoder().norm.register_forward_pre_hook(lambda _module, inputs: before_norm.append(inputs[0]))
    with torch.no_grad():
        output = model(extracted["token_ids"][None], output_hidden_states=True)
    reference = [*output.hidden_states[:-1], before_norm[0]]
    slots = [extracted["hidden_states"][:, slot] for slot in range(len(layer_ids))]
    own = [relative_error(states, reference[layer_id][0]) for states, layer_id in zip(slots, layer_ids, strict=True)]
    before = [
        relative_error(states, reference[layer_id - 1][0]) for states, layer_id in zip(slots, layer_ids, strict=True)
    ]
    print(json.dumps({"error_per_slot": own, "error_to_layer_before": before}))


if __name__ == "__main__":
    main()
