"""Makes a run that is ready for build_vocab_mapping and train_draft, in seconds. Runs with the host's Python.

`python tiny_draft_run.py RUN_DIR`: RUN_DIR is `<workdir>/runs/<run>` with its run_spec.json; the target goes where the
spec says. Its text is a chain, each token always followed by the same other one, and its states say so (the last one
points at the next token through `lm_head`), so that a draft can really learn it.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from eagle3.contract.event import EventWriter
from eagle3.remote.dataset import read_rows
from eagle3.remote.hidden_states import StateStore
from eagle3.remote.step import load_step

VOCAB_SIZE, HIDDEN_SIZE, PROMPT_TOKENS, GENERATED_TOKENS = 256, 64, 4, 28


def main(run_dir: Path) -> None:
    torch.manual_seed(0)
    step = load_step("extract_hidden_states", run_dir, EventWriter(None))
    step.model_dir.mkdir(parents=True)
    lm_head, embeddings = torch.randn(VOCAB_SIZE, HIDDEN_SIZE), torch.randn(VOCAB_SIZE, HIDDEN_SIZE)
    LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_hidden_layers=step.spec.after_blocks[-1] + 1,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=VOCAB_SIZE - 1,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(step.model_dir)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB_SIZE - 1)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>").save_pretrained(step.model_dir)
    weights = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": torch.ones(HIDDEN_SIZE),
        "lm_head.weight": lm_head,
    }
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}, step.model_dir / "model.safetensors"
    )

    following = torch.randperm(VOCAB_SIZE // 4)
    step.run_dir.traces_path.parent.mkdir(parents=True)
    with open(step.run_dir.traces_path, "w") as file:
        for number in range(step.spec.num_samples):
            chain = [number % len(following)]
            while len(chain) < PROMPT_TOKENS + GENERATED_TOKENS:
                chain.append(int(following[chain[-1]]))
            trace = {"id": str(number), "prompt_token_ids": chain[:PROMPT_TOKENS], "token_ids": chain[PROMPT_TOKENS:]}
            file.write(json.dumps(trace) + "\n")

    store = StateStore(step)
    step.run_dir.hidden_states_dir.mkdir()
    rows = read_rows(step)
    store.open(rows)
    mixers = [torch.randn(HIDDEN_SIZE, HIDDEN_SIZE) / HIDDEN_SIZE**0.5 for _ in range(3)]
    for row in rows:
        ids = torch.tensor(row.input_ids)
        taps = [embeddings[ids] @ mixer for mixer in mixers] + [lm_head[following[ids]]]
        scratch = store.scratch_dir / f"{row.index}.safetensors"
        save_file({"hidden_states": torch.stack(taps, dim=1).to(torch.bfloat16), "token_ids": ids}, scratch)
        store.add(row, scratch)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
