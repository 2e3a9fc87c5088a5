"""Real traces without a server: transformers answers the target's own prompts greedily, one JSON line a trace.

Runs in the host environment: `python greedy_traces.py MODEL_DIR PROMPTS_FILE NUM_TRACES NEW_TOKENS > traces.jsonl`.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    model_dir, num_traces, new_tokens = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    prompts = [json.loads(line)["prompt"] for line in Path(sys.argv[2]).read_text().splitlines()[:num_traces]]
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    for index, prompt in enumerate(prompts):
        message = {"role": "user", "content": prompt}
        asked = tokenizer.apply_chat_template(
            [message], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answered = model.generate(**asked, max_new_tokens=new_tokens, do_sample=False)[0].tolist()
        num_asked = asked["input_ids"].shape[1]
        trace = {
            "id": f"greedy-{index}",
            "prompt": prompt,
            "prompt_token_ids": answered[:num_asked],
            "token_ids": answered[num_asked:],
            "reasoning": None,
            "content": "",
            "finish_reason": "stop",
        }
        print(json.dumps(trace))


if __name__ == "__main__":
    main()
