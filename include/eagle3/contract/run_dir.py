"""Where everything lies on the GPU host. Every path is a property; nobody else joins strings."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WorkDir:
    """`<workdir>/`: what the runs on one host share."""

    root: Path

    def code_dir(self, sha: str) -> Path:
        return self.root / "code" / sha

    def job_dir(self, job_id: str) -> Path:
        return self.root / "jobs" / job_id

    def run_dir(self, run_id: str) -> "RunDir":
        return RunDir(self.root / "runs" / run_id)

    @property
    def server_dir(self) -> Path:
        """The vLLM server's own job folder: the server is a supervised job like any other."""
        return self.root / "server"

    @property
    def server_description_path(self) -> Path:
        return self.server_dir / "server.json"

    @property
    def history_path(self) -> Path:
        """One line a step that ended, with the seconds of its phases: the baseline of later estimates."""
        return self.root / "history.jsonl"

    @property
    def gpu_lock_path(self) -> Path:
        """Locked by whoever uses the host's GPUs (the server, or a job); names its holder."""
        return self.root / "gpu.lock"

    def resolve(self, path: str) -> Path:
        """A path of the run spec: absolute, or relative to the work directory."""
        return self.root / Path(path).expanduser()


@dataclass(frozen=True)
class RunDir:
    """`<workdir>/runs/<run>/`: all data of one run."""

    root: Path

    @property
    def work_dir(self) -> WorkDir:
        return WorkDir(self.root.parent.parent)

    @property
    def run_spec_path(self) -> Path:
        return self.root / "run_spec.json"

    @property
    def traces_path(self) -> Path:
        return self.root / "traces" / "traces.jsonl"

    @property
    def trace_failures_path(self) -> Path:
        return self.root / "traces" / "failures.jsonl"

    @property
    def traces_fingerprint_path(self) -> Path:
        """What the traces were made with: other settings must not be mixed into the same file."""
        return self.root / "traces" / "fingerprint.json"

    @property
    def dataset_dir(self) -> Path:
        """Rows `{input_ids, loss_mask}` as speculators reads them."""
        return self.root / "dataset"

    @property
    def hidden_states_dir(self) -> Path:
        return self.root / "hidden_states"

    @property
    def hidden_states_manifest_path(self) -> Path:
        return self.hidden_states_dir / "manifest.jsonl"

    @property
    def vocab_dir(self) -> Path:
        return self.root / "vocab"

    @property
    def checkpoints_dir(self) -> Path:
        return self.root / "checkpoints"

    @property
    def best_checkpoint_path(self) -> Path:
        """A JSON file naming the checkpoint that evaluation serves."""
        return self.root / "checkpoints" / "best.json"

    @property
    def results_dir(self) -> Path:
        """One JSON file a step: its result, which later steps and the report read."""
        return self.root / "results"

    def result_path(self, step: str) -> Path:
        return self.results_dir / f"{step}.json"

    @property
    def baseline_outputs_path(self) -> Path:
        """The plain server's greedy answers to the held-out prompts, as token ids."""
        return self.root / "results" / "baseline_outputs.json"

    @property
    def report_dir(self) -> Path:
        return self.root / "report"


def write_text(path: Path, text: str) -> None:
    """Write aside, fsync, rename: a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
