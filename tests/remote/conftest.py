"""What runs on the host: its supervisor's command line, and a work directory with one real vLLM server."""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import RunDir, WorkDir, read_json, write_json

STEP_SECONDS = 600
MODEL = "models/toy-qwen3-moe"
API_KEY = "the-key-of-this-server"


class Supervisor:
    """The supervisor's command line, under a chosen interpreter and environment."""

    def __init__(self, repo_root: Path, python: str = sys.executable, **environment: str) -> None:
        self._command = [python, "-m", "eagle3.remote.supervisor"]
        self._environment = {"PYTHONPATH": str(repo_root / "include"), "PATH": os.environ["PATH"], **environment}

    def run(
        self, verb: str, job_dir: Path, *options: str, job: dict[str, Any] | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        command = [*self._command, verb, str(job_dir), *options]
        payload = json.dumps(job).encode()
        return subprocess.run(
            command, env=self._environment, input=payload, capture_output=True, check=False, timeout=60
        )

    def ask(self, verb: str, job_dir: Path, *options: str, job: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self.run(verb, job_dir, *options, job=job)
        assert answer.returncode == 0, answer.stderr.decode()
        return json.loads(answer.stdout)

    def wait_for_end(self, job_dir: Path, seconds: float = 20) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (state := self.ask("state", job_dir))["status"] in ("starting", "waiting", "running"):
            assert time.monotonic() < deadline, f"still {state}"
            time.sleep(0.1)
        return state

    def poll(self, job_dir: Path, **seen: Any) -> tuple[dict[str, Any], bytes]:
        """The header of the answer, and the bytes behind it."""
        answer = self.run("poll", job_dir, "--seen", json.dumps(seen))
        assert answer.returncode == 0, answer.stderr.decode()
        _, header, content = answer.stdout.split(b"\n", 2)
        return json.loads(header), content


@pytest.fixture
def make_supervisor(repo_root: Path) -> Callable[..., Supervisor]:
    """`make_supervisor(python, NAME=value)`."""
    return functools.partial(Supervisor, repo_root)


@pytest.fixture
def supervisor(make_supervisor: Callable[..., Supervisor]) -> Supervisor:
    return make_supervisor()


@pytest.fixture
def bash(supervisor: Supervisor, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`bash(script, **job)` launches a bash script as job `j` and returns its folder."""
    job_dir = tmp_path / "jobs" / "j"

    def launch(script: str, **job: Any) -> Path:
        supervisor.ask("launch", job_dir, job={"job_id": "j", "argv": ["bash", "-c", script], **job})
        return job_dir

    yield launch
    if job_dir.exists():
        supervisor.ask("kill", job_dir, "--grace-seconds", "0")


@dataclass(frozen=True)
class HostRun:
    """A run on "the host": its steps are started as the host starts them."""

    paths: RunDir
    host_python: str
    environment: dict[str, str]

    def _command(self, step: str) -> list[str]:
        return [self.host_python, "-m", "eagle3.remote", step, "--run-dir", str(self.paths.root)]

    def step(self, step: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(step), env=self.environment, text=True, capture_output=True, timeout=STEP_SECONDS
        )

    def start(self, step: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command(step), env=self.environment, text=True, stderr=subprocess.PIPE)

    def done(self, step: str) -> dict[str, Any]:
        """The result of a step that must succeed."""
        ended = self.step(step)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return read_json(self.paths.result_path(step))

    def set(self, **values: Any) -> None:
        write_json(self.paths.run_spec_path, {**read_json(self.paths.run_spec_path), **values})

    def server_state(self) -> dict[str, Any]:
        return read_json(self.paths.work_dir.server_dir / "state.json")

    def server_processes(self) -> list[int]:
        """Everything alive in the server's session, also when its leader is gone."""
        command = ["ps", "-s", str(self.server_state()["session"]), "-o", "pid=,stat="]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        return [int(pid) for pid, stat in (line.split() for line in lines) if not stat.startswith("Z")]


@dataclass(frozen=True)
class HostRuns:
    """Makes runs in one work directory: they share its server, as long as they want the same one."""

    work_dir: WorkDir
    host_python: str
    environment: dict[str, str]
    port: int

    def make(self, run_id: str, prompts: list[str], **values: Any) -> HostRun:
        prompts_path = self.work_dir.root / "prompts" / f"{run_id}.jsonl"
        prompts_path.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"id": f"p{number}", "prompt": prompt}) for number, prompt in enumerate(prompts)]
        prompts_path.write_text("\n".join(lines))
        run = HostRun(self.work_dir.run_dir(run_id), self.host_python, self.environment)
        spec = {
            "work_dir": str(self.work_dir.root),
            "host_python": self.host_python,
            "model_path": MODEL,
            "served_model_name": "toy",
            "reasoning_parser": "qwen3",
            "after_blocks": [0, 1, 2, 3],
            "max_model_len": 512,
            "max_new_tokens": 64,
            "request_concurrency": 4,
            "eval_concurrency": 4,
            "server_port": self.port,
            "prompts_file": str(prompts_path),
            "num_samples": len(prompts) - 4,
            "num_eval_prompts": 4,
            "draft_vocab_size": 64,
        }
        write_json(run.paths.run_spec_path, {**spec, **values})
        return run


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def host_runs(tmp_path_factory: pytest.TempPathFactory, host_python: str, host_environment: dict[str, str]) -> HostRuns:
    """Without any target: for what must be refused before a target matters."""
    root = tmp_path_factory.mktemp("host")
    return HostRuns(
        WorkDir(root), host_python, {**host_environment, "EAGLE3_DEVICE": "cpu", "VLLM_API_KEY": API_KEY}, _free_port()
    )


@pytest.fixture(scope="session")
def target_runs(host_runs: HostRuns, toy_work_dir: Path) -> Iterator[HostRuns]:
    """With the toy target; whatever server runs at the end is stopped."""
    os.symlink(toy_work_dir / "models", host_runs.work_dir.root / "models")
    yield host_runs
    host_runs.make("last", ["?"] * 8).step("stop_server")
