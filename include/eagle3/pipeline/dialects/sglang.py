"""What sglang's server prints (0.4-0.5). Its weight bars are vLLM's. Control side."""

import re

from eagle3.pipeline.dialects.bar import Bar, Event, read_bar, read_phase

BARS = (
    Bar(r"Capturing batches \([^)]*\)", "graphs", "post_load"),
    Bar(r"Loading safetensors using Fastsafetensor loader", "shard groups", "loading_weights"),
)

PHASES = (
    ("starting", re.compile(r"server_args=ServerArgs\(")),
    ("engine_init", re.compile(r"Init torch distributed (?:begin|ends)")),
    ("loading_weights", re.compile(r"Load weight begin\.")),
    (
        "post_load",
        re.compile(
            r"Load weight end\.|KV Cache is allocated|Memory pool end|Capture cuda graph begin|max_total_num_tokens="
        ),
    ),
    ("serving", re.compile(r"The server is fired up and ready to roll!")),
    ("generating", re.compile(r"(?:Prefill|Decode) batch[.,\[ ]")),
)


def read(segment: str) -> list[Event]:
    return read_bar(segment, BARS) + read_phase(segment, PHASES)
