"""Where a program stood when it failed, for a log that has no mark of a phase: a piece of one, or only a traceback.

Control side, data only. The first line of the log that matches a row tells; within a line the upper row wins.
"""

import re

HINTS = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (
            "generating",
            r"died unexpectedly|EngineDeadError|RPC call to (?:execute_model|sample_tokens)|hidden_states_connector"
            r"|consecutive samples errored out|in execute_model\b",
        ),
        ("saving", r"Error while serializing|in save_(?:file|pretrained|checkpoint)\b"),
        (
            "post_load",
            r"No available memory for the cache blocks|initialize_cache|KV cache is needed|max seq len .* is larger"
            r"|determine_available_memory|capture_model",
        ),
        (
            "loading_weights",
            r"There is no module or parameter named|size mismatch for |Error while deserializing|in load_weights\b"
            r"|scheduler died during initialization",
        ),
        (
            "training",
            r"torch[./]distributed[./]elastic|Watchdog caught collective operation timeout|forward_batch\b"
            r"|in training_step\b|\btrain\.py\b",
        ),
        (
            "engine_init",
            r"Free memory on device|pynccl|Engine core initialization failed|WorkerProc initialization failed"
            r"|Engine process failed to start|rendezvous\.py|TCPStore|in init_device\b|load_model\(\) missing",
        ),
        (
            "starting",
            r"Error retrieving safetensors|Cached model info for class|validation errors? for \w*Config|gated repo"
            r"|is not a local folder|Repository Not Found|unrecognized arguments|not a valid model identifier",
        ),
    )
)
