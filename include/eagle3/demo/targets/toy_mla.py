"""A DeepSeek-V3 in shape (MLA, MoE) with random weights. Runs on the GPU host.

It is for extraction: its answers mean nothing.
The MLA dimensions are the real ones, since the engine's kernels are made for them; everything else is small.
"""

from pathlib import Path

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

from eagle3.demo.targets.grammar import distinct_questions
from eagle3.demo.targets.model_folder import split_into_shards
from eagle3.demo.targets.toy_tokenizer import MAX_POSITIONS, VOCAB_SIZE, toy_tokenizer

NUM_SHARDS = 4
WEIGHTS_SEED, PROMPTS_SEED = 3, 4

# DeepSeek's own kind of position encoding. With the default kind, vLLM's CPU kernel leaves MLA's key unrotated (0.32).
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def make(model_dir: Path) -> None:
    torch.manual_seed(WEIGHTS_SEED)
    tokenizer = toy_tokenizer()
    eos_token_id, pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = DeepseekV3Config(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        moe_intermediate_size=128,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        rope_parameters=YARN,
        num_mtp_layers=0,
        initializer_range=0.1,  # larger than usual: each block changes the state, and the argmax has few near ties
        topk_method="noaux_tc",  # the engine reads these two from config.json; transformers takes them for granted
        scoring_func="sigmoid",
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )
    model = DeepseekV3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=eos_token_id, pad_token_id=pad_token_id)
    model.to(torch.bfloat16).save_pretrained(model_dir)
    tokenizer.save_pretrained(model_dir)
    split_into_shards(model_dir, NUM_SHARDS)


def prompts() -> list[str]:
    return distinct_questions(PROMPTS_SEED, count=512)
