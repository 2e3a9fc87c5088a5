"""What the vLLM server of a run is: its command line and environment, on the GPU host, plain or with a draft head."""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.remote.step import Step, device_type

# vLLM's own 600 s is shorter than the load of a very large target; a load is judged by its progress instead.
ENGINE_READY_SECONDS = 6 * 3600
MANAGED_ARGUMENTS = (
    "--model",
    "--served-model-name",
    "--tensor-parallel-size",
    "-tp",
    "--max-model-len",
    "--gpu-memory-utilization",
    "--host",
    "--port",
    "--reasoning-parser",
    "--trust-remote-code",
    "--speculative-config",
)


@dataclass(frozen=True)
class ServerDescription:
    """Two servers are the same if these are. `weights` stands for the files of target and draft on disk."""

    argv: list[str]
    environment: dict[str, str]
    model: str
    checkpoint: str | None
    weights: str

    @property
    def kind(self) -> str:
        return f"server with the draft head {self.checkpoint}" if self.checkpoint else "plain server"

    def difference(self, recorded: dict[str, Any]) -> str | None:
        """How the server that was started as `recorded` differs, in words; None when it is the same."""
        if recorded.get("argv") != self.argv:
            theirs, ours = set(recorded.get("argv", [])), set(self.argv)
            return f"other arguments (it has {sorted(theirs - ours)}, wanted {sorted(ours - theirs)})"
        if recorded.get("weights") != self.weights:
            return "the files of the target or the draft have changed since it was started"
        return None

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def describe_server(step: Step, checkpoint: Path | None) -> ServerDescription:
    """The server that the spec asks for, with the draft head `checkpoint` or without any.

    Raises ConfigError for a folder that is no model and for server_args that the spec sets by other fields.
    """
    spec = step.spec
    for folder in filter(None, (step.model_dir, checkpoint)):
        if not (folder / "config.json").exists():
            raise ConfigError(f"{folder} is not a model: it has no config.json; check model_path and the checkpoint")
    for argument in spec.server_args:
        if argument.split("=")[0] in MANAGED_ARGUMENTS:
            raise ConfigError(f"server_args must not contain {argument}: another field of the run sets it")
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(step.model_dir), "--served-model-name", spec.served_model_name]
    argv += ["--host", "127.0.0.1", "--port", str(spec.server_port)]
    argv += ["--tensor-parallel-size", str(spec.tensor_parallel_size), "--max-model-len", str(spec.max_model_len)]
    argv += ["--gpu-memory-utilization", str(spec.gpu_memory_utilization)]
    # One log line per request would bury the load's lines in a log that is kept.
    argv += ["--disable-uvicorn-access-log"]
    if spec.reasoning_parser:
        argv += ["--reasoning-parser", spec.reasoning_parser]
    if spec.trust_remote_code:
        argv += ["--trust-remote-code"]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(ENGINE_READY_SECONDS),
        "VLLM_NO_USAGE_STATS": "1",
        "SPT_NOENV": "1",  # engine processes rename themselves; this keeps their environment, and so their marker
    }
    if device_type() == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
        # Compiling takes longer than a small target's whole run. Like all defaults, server_args can take them back.
        argv += ["--max-num-seqs", str(max(spec.request_concurrency, spec.eval_concurrency)), "--enforce-eager"]
    if checkpoint:
        speculation = {
            "model": str(checkpoint),
            "method": "eagle3",
            "num_speculative_tokens": spec.num_speculative_tokens,
        }
        argv += ["--speculative-config", json.dumps(speculation)]
    return ServerDescription(
        argv=argv + spec.server_args,
        # What the host's own environment sets wins over these defaults.
        environment={name: value for name, value in environment.items() if name not in os.environ},
        model=str(step.model_dir),
        checkpoint=str(checkpoint) if checkpoint else None,
        weights=" ".join(files_stamp(folder) for folder in (step.model_dir, checkpoint) if folder),
    )


def files_stamp(folder: Path) -> str:
    """Changes when a file of the folder does (name, size, time of change), without reading the weights."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
