"""A Qwen3-MoE of 1.6 M parameters that reasons in the toy grammar, trained here. Runs on the GPU host, on its CPU."""

import math
import time
from itertools import islice
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from eagle3.demo.targets.grammar import Example, distinct_questions, examples
from eagle3.demo.targets.model_folder import split_into_shards
from eagle3.demo.targets.toy_tokenizer import MAX_POSITIONS, VOCAB_SIZE, toy_tokenizer

NUM_SHARDS = 8
TRAINING_STEPS = 400
BATCH_SIZE = 16
PEAK_LEARNING_RATE = 4e-3
WARMUP_STEPS = 40
TRAINING_SEED, PROMPTS_SEED = 1, 2
IGNORED = -100  # the label that transformers leaves out of the loss


def make(model_dir: Path) -> None:
    torch.set_num_threads(1)  # the same sums on every machine; and two would spin against each other on a busy one
    torch.manual_seed(TRAINING_SEED)
    tokenizer = toy_tokenizer()
    eos_token_id, pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=128,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )
    model = Qwen3MoeForCausalLM(config)
    model.set_experts_implementation("eager")  # for so few experts a third faster on a CPU than the default
    _train(model, tokenizer)
    model.generation_config = GenerationConfig(eos_token_id=eos_token_id, pad_token_id=pad_token_id)
    model.to(torch.bfloat16).save_pretrained(model_dir)
    tokenizer.save_pretrained(model_dir)
    split_into_shards(model_dir, NUM_SHARDS)


def prompts() -> list[str]:
    return distinct_questions(PROMPTS_SEED, count=512)


def _train(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _learning_rate_factor)
    stream = examples(TRAINING_SEED)
    started = time.monotonic()
    for step in range(1, TRAINING_STEPS + 1):
        loss = model(**_batch(list(islice(stream, BATCH_SIZE)), tokenizer)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0:
            seconds = time.monotonic() - started
            print(f"training {step}/{TRAINING_STEPS} steps, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)


def _learning_rate_factor(step: int) -> float:
    """Linear warm-up, then a half cosine down to zero."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (TRAINING_STEPS - WARMUP_STEPS)))


def _batch(batch: list[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """Padded `input_ids`, `attention_mask` and `labels`, each [batch, tokens]; loss on the assistant's turn only."""
    rows, labels = [], []
    for example in batch:
        messages = [{"role": "user", "content": example.question}]
        asked = tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        said = tokenizer.encode(f"<think>\n{example.reasoning}\n</think>\n\n{example.answer}<|im_end|>")
        rows.append(torch.tensor(asked + said))
        labels.append(torch.tensor([IGNORED] * len(asked) + said))
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=IGNORED),
    }
