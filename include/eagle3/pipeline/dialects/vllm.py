"""What vLLM prints (0.6-0.33, server and offline), CUDA and CPU. Control side.

Rows are format strings of vLLM's sources. Patterns are searched anywhere in a segment: several processes write into
one log, and a record may be glued to an unfinished bar.
"""

import re

from eagle3.pipeline.dialects.bar import Bar, Event, read_bar, read_phase

BARS = (
    Bar(r"Loading safetensors checkpoint shards(?: \(eager\))?", "shards", "loading_weights"),
    Bar(r"Loading (?:pt|np_cache) checkpoint shards", "shards", "loading_weights"),
    Bar(r"Multi-thread loading (?:pt checkpoint )?shards", "shards", "loading_weights"),
    Bar(r"Loading safetensors using Runai Model Streamer", "tensors", "loading_weights"),
    Bar(r"Loading safetensors using Fastsafetensor loader", "shard groups", "loading_weights"),
    Bar(r"Loading fastsafetensors checkpoint shards", "shard groups", "loading_weights"),
    Bar(r"Loading safetensors using InstantTensor(?: loader)?", "bytes", "loading_weights"),
    Bar(r"Capturing CUDA graphs?(?: shapes| \([^)]*\))?", "graphs", "post_load"),
    Bar(r"(?:DeepGEMM|JIT kernel|Kernel) warmup", "kernels", "post_load"),
    Bar(r"Compiling CuTeDSL kernels", "kernels", "post_load"),
    Bar(r"Processed prompts", "prompts", "generating"),
)

PHASES = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (
            "starting",
            r"vLLM API server version|non-default args:|Resolved architecture:|Using max model len"
            r"|█  version \d|Unknown vLLM environment variable",
        ),
        (
            "engine_init",
            r"Initializing an? (?:V\d )?LLM engine|world_size=\d+ rank=\d+|vLLM is using nccl==|NVLink detection failed"
            r"|Waiting for \d+ core engine proc|Custom allreduce is disabled|Reducing Torch parallelism"
            r"|\[Gloo\] Rank \d|NCCL (?:INFO|WARN)",
        ),
        (
            "loading_weights",
            r"Starting to load model|Loading model from scratch|Initializing model took|Using model weights format"
            r"|Loading drafter model",
        ),
        (
            "post_load",
            r"Loading (?:model )?weights took|Model loading took|Online quantization as part of"
            r"|for vLLM's torch\.compile|Dynamo bytecode transform|Compiling a graph for"
            r"|Directly load the compiled graph|torch\.compile (?:takes|took|and initial)|Memory profiling takes"
            r"|Available KV cache memory|KV cache size: [\d,]+ tokens|Graph capturing finished|\[Autotuner\]"
            r"|torch[/._]_inductor[/.]select_algorithm|^AUTOTUNE |init engine \(profile",
        ),
        ("serving", r"Application startup complete\."),
        ("generating", r"(?:Adding requests|Rendering prompts):|Dumping scheduler output for model execution"),
        ("shutdown", r"\[shutdown\]|Parent process exited, terminating worker"),
        ("finished", r"Application shutdown complete|Finished server process|Shutting down Ray distributed executor"),
    )
)

_THROUGHPUT = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs"
)
_WARNINGS = re.compile(
    r"Hidden-states write failed|No available shared memory broadcast block found|died unexpectedly"
    r"|EngineCore encountered a fatal error|Timed out waiting for engine core processes"
)


def read(segment: str) -> list[Event]:
    events = read_bar(segment, BARS) + read_phase(segment, PHASES)
    if throughput := _THROUGHPUT.search(segment):
        running = int(throughput["running"])
        events += [
            {"kind": "phase", "name": "generating" if running else "serving"},
            {"kind": "metric", "name": "prompt_tokens_per_second", "value": float(throughput["prompt"])},
            {"kind": "metric", "name": "generated_tokens_per_second", "value": float(throughput["generation"])},
            {"kind": "metric", "name": "running_requests", "value": running},
        ]
    if _WARNINGS.search(segment):
        events.append({"kind": "warning", "text": segment})
    return events
