"""RunSpec: the whole run as one validated document.

The trigger form, `run_spec.json` on the host and the README's table are made from it. Units are in the names.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from eagle3.contract.errors import ConfigError

# Options of the vLLM server that take a secret, and the environment variable that does the same.
SECRET_OPTIONS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}


def _field(section: str, title: str, description: str, default: Any = ..., **limits: Any) -> Any:
    """A field of the form: its section and title ride along in the JSON schema."""
    return Field(default, title=title, description=description, json_schema_extra={"section": section}, **limits)


class RunSpec(BaseModel):
    """One run. Paths are on the GPU host, absolute or relative to `work_dir`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    preset: str = _field("Run", "Preset", "The preset that the other values came from.", "demo")
    work_dir: str = _field(
        "Host", "Work directory", "Absolute path on the host for code, jobs, runs and the server.", min_length=2
    )
    host_python: str = _field(
        "Host", "Python on the host", "Interpreter of the host environment (vllm, speculators).", min_length=1
    )

    model_path: str = _field("Target", "Model path", "Folder with the target's safetensors shards.", min_length=1)
    served_model_name: str = _field(
        "Target", "Served name", "Name under which the server offers the model.", min_length=1
    )
    reasoning_parser: str | None = _field(
        "Target",
        "Reasoning parser",
        "vLLM's reasoning parser (kimi_k2, qwen3, ...); empty for a model without one.",
        None,
    )
    trust_remote_code: bool = _field(
        "Target", "Trust remote code", "Let vLLM and transformers run code from the model folder.", False
    )
    after_blocks: list[Annotated[int, Field(ge=0)]] = _field(
        "Target",
        "Target layers (after block)",
        "Transformer blocks whose outputs are taken: three auxiliary taps, then the final block (the label source). "
        "Block n is vLLM id n+1.",
        min_length=4,
        max_length=4,
    )

    tensor_parallel_size: int = _field(
        "Engine", "TP size", "Tensor-parallel ranks, for server and extraction.", 1, ge=1, le=64
    )
    gpu_memory_utilization: float = _field(
        "Engine", "GPU memory utilisation", "Share of each GPU's memory that vLLM may use.", 0.8, gt=0.0, le=0.98
    )
    max_model_len: int = _field(
        "Engine", "Max sequence length", "Longest row in tokens, prompt and generated.", 4096, ge=32, le=1_048_576
    )
    extraction_batch_size: int = _field(
        "Engine", "Extraction batch", "Sequences that the extraction engine holds at once.", 8, ge=1, le=1024
    )
    server_port: int = _field(
        "Engine", "Server port", "Port of the vLLM server on the host's loopback.", 8100, ge=1024, le=65535
    )
    server_args: list[str] = _field(
        "Engine", "More server arguments", "Further arguments of the vLLM server, one per item.", []
    )

    prompts_file: str = _field(
        "Traces", "Prompts file", "JSON lines with `id` and `prompt` (or `messages`).", min_length=1
    )
    num_samples: int = _field(
        "Traces", "Samples", "Prompts to answer for training; 0 takes all that are not held out.", ge=0, le=10_000_000
    )
    request_concurrency: int = _field("Traces", "Concurrency", "Requests in flight at the server.", 64, ge=1, le=4096)
    max_new_tokens: int = _field(
        "Traces", "Max new tokens", "Longest answer in tokens, reasoning included.", 2048, ge=4, le=1_048_576
    )
    temperature: float = _field(
        "Traces", "Temperature", "Sampling temperature of the traces; 0 is greedy.", 0.6, ge=0, le=2
    )
    top_p: float = _field("Traces", "Top-p", "Nucleus sampling of the traces.", 0.95, gt=0, le=1)
    seed: int = _field("Traces", "Seed", "Seed of sampling, shuffling and training.", 0, ge=0)

    draft_vocab_size: int = _field(
        "Draft", "Draft vocabulary", "Tokens that the draft head can propose.", 32_000, ge=16
    )
    epochs: int = _field("Training", "Epochs", "Passes over the training rows.", 3, ge=1, le=1000)
    learning_rate: float = _field("Training", "Learning rate", "Peak learning rate.", 1e-4, gt=0, le=1)
    ttt_steps: int = _field(
        "Training", "TTT steps", "Training-time-test steps (draft positions trained).", 3, ge=1, le=8
    )
    train_seq_len: int = _field(
        "Training", "Tokens per step", "Rows are packed to this many tokens per training step.", 8192, ge=32
    )

    num_speculative_tokens: int = _field(
        "Evaluation", "Speculative tokens", "Tokens the draft proposes per step.", 3, ge=1, le=8
    )
    num_eval_prompts: int = _field(
        "Evaluation", "Held-out prompts", "Prompts kept out of training, for evaluation.", 32, ge=1
    )
    eval_concurrency: int = _field(
        "Evaluation", "Concurrency", "Requests in flight during evaluation.", 8, ge=1, le=4096
    )

    @field_validator("server_args")
    @classmethod
    def _no_secret_in_a_command_line(cls, arguments: list[str]) -> list[str]:
        for argument in arguments:
            option = argument.split("=")[0]
            if option in SECRET_OPTIONS:
                raise PydanticCustomError(
                    "secret",
                    f"{option} would show a secret in the process list, in logs and in this run's record; set "
                    f"{SECRET_OPTIONS[option]} in the login environment of the host instead",
                )
        return arguments

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        if list(self.after_blocks) != sorted(set(self.after_blocks)):
            raise ValueError(f"after_blocks must rise and not repeat, got {self.after_blocks}")
        if self.max_new_tokens >= self.max_model_len:
            raise ValueError(
                f"max_new_tokens ({self.max_new_tokens}) must be smaller than max_model_len ({self.max_model_len}): "
                "the prompt needs room too"
            )
        if not self.work_dir.startswith("/"):
            raise ValueError(f"work_dir must be absolute, got {self.work_dir!r}")
        return self

    @property
    def engine_layer_ids(self) -> list[int]:
        """The taps as vLLM and speculators count them: id k is the output of block k-1."""
        return [block + 1 for block in self.after_blocks]

    @property
    def server_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def parse_run_spec(values: dict[str, Any]) -> RunSpec:
    """A RunSpec, or ConfigError with one line per wrong value (an unknown key gets the allowed ones)."""
    try:
        return RunSpec.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_readable(error)) from None


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"]) or "run"
        if item["type"] == "extra_forbidden":
            lines.append(f"{name}: unknown; allowed are {', '.join(RunSpec.model_fields)}")
        elif item["type"] == "secret":  # what was given is not repeated
            lines.append(f"{name}: {item['msg']}")
        else:
            lines.append(f"{name}: {item['msg'].removeprefix('Value error, ')} (got {item['input']!r:.80})")
    return "the run's values are wrong:\n  " + "\n  ".join(lines)
