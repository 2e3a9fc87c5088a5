"""`traces.jsonl` while it is written on the GPU host: append only, resumable by prompt id after a kill at any point."""

import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_dir import RunDir, read_json, write_json
from eagle3.remote.dataset import Prompt, read_json_lines
from eagle3.remote.step import Step

FSYNC_SECONDS = 5.0


def fingerprint(step: Step) -> dict[str, Any]:
    """What decides the traces besides the prompts. The target is known by its config and its files' sizes."""
    spec, model_dir = step.spec, step.model_dir
    return {
        "model_path": str(model_dir),
        "model_config_sha256": hashlib.sha256((model_dir / "config.json").read_bytes()).hexdigest(),
        "weight_bytes": {path.name: path.stat().st_size for path in sorted(model_dir.glob("*.safetensors"))},
        "reasoning_parser": spec.reasoning_parser,
        "max_model_len": spec.max_model_len,
        "max_new_tokens": spec.max_new_tokens,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "seed": spec.seed,
    }


class TraceFile:
    """Use as `with TraceFile.opened(...) as traces`. One process writes at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = open(path, "ab")  # noqa: SIM115 - closed by __exit__
        self._synced_at = time.monotonic()
        self.done: set[str] = set()

    @classmethod
    def opened(cls, run_dir: RunDir, prompts: list[Prompt], made_with: dict[str, Any]) -> Self:
        """The run's traces with the ids that are done already, half a last line cut off.

        Raises ConfigError when another process writes them, or when they were made with other settings or prompts.
        """
        traces = cls(run_dir.traces_path)
        try:
            traces._take_over(run_dir, {prompt.id: prompt for prompt in prompts}, made_with)
        except BaseException:
            traces._file.close()
            raise
        return traces

    def _take_over(self, run_dir: RunDir, prompts: dict[str, Prompt], made_with: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is writing {self._path}: wait for it or stop it") from None
        _cut_half_line(self._path)
        for number, trace in enumerate(read_json_lines(self._path), start=1):
            prompt = prompts.get(trace["id"])
            if prompt is None or prompt.messages != trace["prompt"] or trace["id"] in self.done:
                raise ConfigError(
                    f"{self._path}:{number}: trace {trace['id']!r} does not belong to the run's training prompts "
                    f"(prompts_file or num_samples has changed): use a new run, or delete {self._path.parent}"
                )
            self.done.add(trace["id"])
        path = run_dir.traces_fingerprint_path
        recorded = read_json(path) if path.exists() else {}
        if self.done and recorded != made_with:
            changed = [
                f"{name}: {recorded.get(name)} -> {value}"
                for name, value in made_with.items()
                if recorded.get(name) != value
            ]
            raise ConfigError(
                f"{self._path} has {len(self.done)} traces made with other settings ({'; '.join(changed)}): "
                f"set them back, use a new run, or delete {self._path.parent}"
            )
        write_json(path, made_with)

    def append(self, trace: dict[str, Any]) -> None:
        """One line, handed to the system at once and to the disk every few seconds."""
        self._file.write(_line(trace))
        self._file.flush()
        self.done.add(trace["id"])
        if time.monotonic() - self._synced_at > FSYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self._file.close()


def _cut_half_line(path: Path) -> None:
    """A killed writer may leave half a line; appending to it would spoil the next one too."""
    with open(path, "r+b") as file:
        end = 0
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(end)
                break
            end += len(line)


def rewrite(path: Path, traces: Iterable[dict[str, Any]]) -> None:
    """Replace all traces by these, in one rename."""
    aside = path.with_name(f".{path.name}")
    with open(aside, "wb") as file:
        file.writelines(_line(trace) for trace in traces)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _line(trace: dict[str, Any]) -> bytes:
    return json.dumps(trace).encode() + b"\n"


def summarise(path: Path) -> dict[str, Any]:
    """Counts over all traces of the file."""
    counts: Counter[str] = Counter()
    finish_reasons: Counter[str] = Counter()
    for trace in read_json_lines(path):
        counts["num_traces"] += 1
        counts["prompt_tokens"] += len(trace["prompt_token_ids"])
        counts["generated_tokens"] += len(trace["token_ids"])
        counts["rows_with_reasoning"] += bool(trace["reasoning"])
        finish_reasons[trace["finish_reason"]] += 1
    names = ("num_traces", "prompt_tokens", "generated_tokens", "rows_with_reasoning")
    return {**{name: counts[name] for name in names}, "finish_reasons": dict(finish_reasons)}
