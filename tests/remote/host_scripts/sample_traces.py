"""Real traces without a server: transformers answers random prompts of token ids, one JSON line a trace.

Runs in the host environment: `python sample_traces.py MODEL_DIR NUM_TRACES NEW_TOKENS TEMPERATURE TOP_P`.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    model_dir, num_traces, new_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    temperature, top_p = float(sys.argv[4]), float(sys.argv[5])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    prompts = torch.randint(3, model.get_input_embeddings().num_embeddings, (num_traces, 12))
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        if temperature
        else {"do_sample": False}
    )
    answers = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        **sampling,
    )
    for index, ids in enumerate(answers.tolist()):
        trace = {
            "id": f"sampled-{index}",
            "prompt": "",
            "prompt_token_ids": ids[:12],
            "token_ids": ids[12:],
            "reasoning": None,
            "content": "",
            "finish_reason": "length",
        }
        print(json.dumps(trace))


if __name__ == "__main__":
    main()
