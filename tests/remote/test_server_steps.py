"""The server's steps with a real vLLM on CPU: refusals, attaching to a load, death, draft head, stop.

The live tests build on each other's server, in the order of the file; each says so by the step it runs first.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from eagle3.contract.run_dir import write_json

PROMPTS = [f"Question {number}: what is {number} plus one?" for number in range(12)]
RANDOM_DRAFT = Path(__file__).parent / "host_scripts" / "random_draft.py"


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def model_folder(root: Path, **config: str) -> Path:
    folder = root / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# Refused before anything is started ---------------------------------------------------------------------------


def test_folder_without_a_model_is_refused(host_runs) -> None:
    ended = host_runs.make("nomodel", PROMPTS, model_path="models/none").step("ensure_server")
    assert ended.returncode == 2
    assert f"{host_runs.work_dir.root}/models/none is not a model" in ended.stderr


def test_argument_of_another_field_is_refused(host_runs, tmp_path: Path) -> None:
    run = host_runs.make("twice", PROMPTS, model_path=str(model_folder(tmp_path)), server_args=["--port=9"])
    ended = run.step("ensure_server")
    assert ended.returncode == 2
    assert "server_args must not contain --port=9" in ended.stderr


@pytest.mark.parametrize("step", ["ensure_server", "stop_server"])
def test_port_of_somebody_else_is_named_and_left_alone(host_runs, tmp_path: Path, step: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        run = host_runs.make(f"held-{step}", PROMPTS, model_path=str(model_folder(tmp_path)), server_port=port)
        ended = run.step(step)
    assert ended.returncode == 2
    assert f"port {port} is held by process {os.getpid()} of" in ended.stderr


@pytest.mark.parametrize(
    ("step", "remedy"), [("generate_traces", "ensure_server"), ("measure_baseline", "start_server")]
)
def test_steps_say_which_server_they_miss(host_runs, tmp_path: Path, step: str, remedy: str) -> None:
    run = host_runs.make(f"noserver-{step}", PROMPTS, model_path=str(model_folder(tmp_path)))
    ended = run.step(step)
    assert ended.returncode == 2
    assert f"{step} needs the plain server, but no server runs: run {remedy} first" in ended.stderr


# Deaths at the start ------------------------------------------------------------------------------------------


@pytest.mark.live
def test_refused_argument_is_named(target_runs) -> None:
    ended = target_runs.make("badflag", PROMPTS, server_args=["--no-such-flag"]).step("ensure_server")
    assert ended.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in ended.stderr.split("last lines")[0]


@pytest.mark.live
def test_wrong_model_gives_the_decisive_line(target_runs, tmp_path: Path) -> None:
    wrong = model_folder(tmp_path, model_type="no_such_type", architectures="NoSuchModel")
    started = time.monotonic()
    ended = target_runs.make("wrong", PROMPTS, model_path=str(wrong)).step("ensure_server")
    assert ended.returncode == 1
    decisive = ended.stderr.split("the vLLM server died in engine_init (exited, exit code 1): ")[1].split("\n")[0]
    assert "no_such_type" in decisive
    assert time.monotonic() - started < 90


# One server's life --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(target_runs):
    return target_runs.make("r", PROMPTS)


@pytest.mark.live
def test_ensure_killed_while_loading_is_taken_up_again(run) -> None:
    run.done("stop_server")
    first = run.start("ensure_server")
    deadline = time.monotonic() + 300
    while "engine_init" not in first.stderr.readline():
        assert time.monotonic() < deadline
    first.kill()
    first.wait()
    loading = run.server_state()["pid"]

    assert run.done("ensure_server")["action"] == "kept"
    assert run.server_state()["pid"] == loading
    assert len(run.server_processes()) >= 2
    again = run.done("ensure_server")
    assert (again["action"], again["checkpoint"]) == ("kept", None)
    assert run.server_state()["pid"] == loading


@pytest.mark.live
def test_the_key_of_the_server_is_in_no_file_and_no_command_line(run) -> None:
    """Row 20. All steps of this file talk to a server that wants VLLM_API_KEY of the login environment."""
    run.done("ensure_server")
    secret = b"the-key-of-this-server"
    files = [path for path in run.paths.work_dir.root.rglob("*") if path.is_file() and "models" not in path.parts]
    assert len(files) > 5
    assert not [path for path in files if secret in path.read_bytes()]
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in run.server_processes()]
    assert not [command for command in commands if secret in command]


@pytest.mark.live
def test_baseline_counts_what_it_generated(run) -> None:
    run.done("start_server")
    result = run.done("measure_baseline")
    outputs = json.loads(run.paths.baseline_outputs_path.read_text())
    assert set(outputs) == {"p0", "p1", "p2", "p3"}
    assert result["prompts"] == 4
    assert result["generated_tokens"] == sum(map(len, outputs.values())) > 0
    assert result["tokens_per_second"] == pytest.approx(result["generated_tokens"] / result["seconds"], rel=0.01)


@pytest.mark.live
def test_death_while_generating_is_noticed_and_nothing_stays_behind(target_runs, run) -> None:
    run.done("start_server")
    long = target_runs.make("long", [f"Tell story {number}." for number in range(400)], max_new_tokens=400)
    generating = long.start("generate_traces")
    deadline = time.monotonic() + 300
    while "progress" not in generating.stderr.readline():
        assert time.monotonic() < deadline
    leader = run.server_state()["pid"]
    os.kill(leader, signal.SIGKILL)
    killed_at = time.monotonic()
    _, said = generating.communicate(timeout=60)
    assert generating.returncode == 1
    assert "the vLLM server died in serving (exited, signal 9)" in said
    assert time.monotonic() - killed_at < 30

    run.done("stop_server")
    assert run.server_processes() == []
    assert not port_is_open(target_runs.port)


@pytest.mark.live
def test_draft_head_is_served_measured_and_compared(run, host_python: str) -> None:
    checkpoint = run.paths.checkpoints_dir / "0"
    model_dir = run.paths.work_dir.resolve("models/toy-qwen3-moe")
    subprocess.run([host_python, str(RANDOM_DRAFT), str(model_dir), "1,2,3", str(checkpoint)], check=True)
    write_json(run.paths.best_checkpoint_path, {"checkpoint": str(checkpoint)})

    unserved = run.step("evaluate_draft")
    assert unserved.returncode == 2
    assert "run serve_draft first" in unserved.stderr

    assert run.done("serve_draft")["checkpoint"] == str(checkpoint)
    plain_only = run.step("measure_baseline")
    assert plain_only.returncode == 2
    assert "run start_server first" in plain_only.stderr

    result = run.done("evaluate_draft")
    assert result["draft_tokens"] == 3 * result["drafts"] > 0
    assert result["acceptance_length"] == pytest.approx(1 + result["accepted"] / result["drafts"], abs=1e-3)
    assert result["acceptance_length"] == pytest.approx(1 + sum(result["acceptance_per_position"]), abs=1e-3)
    assert len(result["acceptance_per_position"]) == 3
    assert result["outputs_compared"] == 4
    assert result["outputs_identical"] >= 3  # one near tie of a toy in bf16 may flip
    baseline = json.loads(run.paths.result_path("measure_baseline").read_text())
    assert result["speedup"] == pytest.approx(result["tokens_per_second"] / baseline["tokens_per_second"], rel=0.01)

    # The same path with other weights is another head.
    shutil.copy(checkpoint / "config.json", checkpoint / "generation_config.json")
    stale = run.step("evaluate_draft")
    assert stale.returncode == 2
    assert "have changed since it was started" in stale.stderr


@pytest.mark.live
def test_stop_twice(target_runs, run) -> None:
    first = run.done("stop_server")
    assert first["was_running"]
    assert first["processes_ended"] >= 2
    assert run.server_processes() == []
    assert not port_is_open(target_runs.port)
    second = run.done("stop_server")
    assert (second["was_running"], second["processes_ended"]) == (False, 0)
