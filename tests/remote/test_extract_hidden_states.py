"""extract_hidden_states and verify_hidden_states as a host runs them: vLLM on CPU, kills, disk errors, all real."""

import json
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOST_SCRIPTS = Path(__file__).parent / "host_scripts"
START_LIMIT_SECONDS = 300

Run = Callable[..., Path]


def _config(model_dir: Path) -> dict[str, Any]:
    return json.loads((model_dir / "config.json").read_text())


@pytest.fixture
def make_run(toy_work_dir: Path, host_python: str, tmp_path: Path) -> Run:
    """A run folder in a work directory of the test's own, whose models are the toys."""
    (tmp_path / "models").symlink_to(toy_work_dir / "models")

    def make(model: str, **values: Any) -> Path:
        blocks = _config(tmp_path / "models" / model)["num_hidden_layers"]
        spec = {
            "work_dir": str(tmp_path),
            "host_python": host_python,
            "model_path": f"models/{model}",
            "served_model_name": "toy",
            "after_blocks": [0, 1, blocks - 2, blocks - 1],
            "max_model_len": 256,
            "max_new_tokens": 128,
            "extraction_batch_size": 4,
            "prompts_file": "prompts.jsonl",
            "num_samples": 4,
            "draft_vocab_size": 64,
            **values,
        }
        run_dir = tmp_path / "runs" / "run"
        (run_dir / "traces").mkdir(parents=True)
        (run_dir / "run_spec.json").write_text(json.dumps(spec))
        return run_dir

    return make


@pytest.fixture
def step(host_python: str, host_environment: dict[str, str]) -> Callable[[str, Path], subprocess.CompletedProcess[str]]:
    def run_step(name: str, run_dir: Path) -> subprocess.CompletedProcess[str]:
        command = [host_python, "-m", "eagle3.remote", name, "--run-dir", str(run_dir)]
        return subprocess.run(
            command, env=host_environment, text=True, capture_output=True, timeout=START_LIMIT_SECONDS
        )

    return run_step


def _write_random_traces(run_dir: Path, lengths: list[int], vocab_size: int) -> None:
    chance = random.Random(7)
    with open(run_dir / "traces" / "traces.jsonl", "w") as file:
        for index, length in enumerate(lengths):
            ids = [chance.randrange(3, vocab_size) for _ in range(length)]
            trace = {"id": f"t{index}", "prompt": "", "prompt_token_ids": ids[:4], "token_ids": ids[4:]}
            file.write(json.dumps({**trace, "reasoning": None, "content": "", "finish_reason": "stop"}) + "\n")


def _manifest(run_dir: Path) -> dict[int, dict[str, Any]]:
    path = run_dir / "hidden_states" / "manifest.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return {entry["row"]: entry for entry in (json.loads(line) for line in lines if line.endswith("\n"))}


def _result(run_dir: Path, name: str) -> dict[str, Any]:
    return json.loads((run_dir / "results" / f"{name}.json").read_text())


def _names(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "hidden_states").iterdir()}


def _state_file(run_dir: Path, row: int) -> Path:
    return run_dir / "hidden_states" / f"hs_{row}.safetensors"


def _processes_of_session(session: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = []
    for pid in pids:
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def _wait_for_end_of_session(session: int) -> None:
    """Python's own resource tracker outlives its process by a moment; an engine would stay."""
    deadline = time.monotonic() + 15
    while left := _processes_of_session(session):
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.1)


def _wait_for_rows(run_dir: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while len(_manifest(run_dir)) < count:
        assert process.poll() is None, "the step ended before it had written the rows"
        assert time.monotonic() < deadline, f"no {count} rows after {START_LIMIT_SECONDS} s"
        time.sleep(0.02)


def _states_against_transformers(
    host_python: str, host_environment: dict[str, str], run_dir: Path, row: int
) -> list[dict[str, float]]:
    spec = json.loads((run_dir / "run_spec.json").read_text())
    ids = ",".join(str(block + 1) for block in spec["after_blocks"])
    model_dir = Path(spec["work_dir"]) / spec["model_path"]
    command = [host_python, HOST_SCRIPTS / "compare_states.py", model_dir, ids, _state_file(run_dir, row)]
    done = subprocess.run(command, env=host_environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _assert_states_are_right(slots: list[dict[str, float]]) -> None:
    """As near to the exact states as bfloat16 allows, and clearly not the layer before.

    In deep blocks of a random MoE rounding alone sends tokens to other experts: those slots cannot tell layers apart.
    """
    assert len(slots) == 4
    for slot in slots:
        assert slot["error"] < 3 * slot["error_of_bfloat16"] + 0.01, slots
    telling = [slot for slot in slots if slot["error_of_bfloat16"] < 0.05]
    assert len(telling) >= 2, slots
    for slot in telling:
        assert slot["error_to_layer_before"] > 2 * slot["error"], slots


def test_a_last_tap_that_is_not_the_last_block_is_refused(make_run: Run, step: Any) -> None:
    run_dir = make_run("toy-qwen3-moe", after_blocks=[0, 1, 2, 3])
    _write_random_traces(run_dir, [8], 100)
    done = step("extract_hidden_states", run_dir)
    assert done.returncode == 2
    assert "must end with" in done.stderr
    assert "label source" in done.stderr


def test_states_that_do_not_fit_the_disk_are_refused_before_the_load(make_run: Run, step: Any, tmp_path: Path) -> None:
    run_dir = make_run("toy-qwen3-moe", model_path="wide")
    (tmp_path / "wide").mkdir()
    config = {**_config(tmp_path / "models" / "toy-qwen3-moe"), "hidden_size": 10**10}
    (tmp_path / "wide" / "config.json").write_text(json.dumps(config))
    _write_random_traces(run_dir, [200] * 4, 100)
    started = time.monotonic()
    done = step("extract_hidden_states", run_dir)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "4 rows need" in done.stderr
    assert time.monotonic() - started < 60


def test_verification_counts_missing_rows_and_names_the_next_command(make_run: Run, step: Any) -> None:
    run_dir = make_run("toy-qwen3-moe")
    _write_random_traces(run_dir, [8, 9, 10], 100)
    done = step("verify_hidden_states", run_dir)
    assert done.returncode == 1
    assert "3 of 3 rows are missing" in done.stderr
    assert f"extract_hidden_states --run-dir {run_dir}" in done.stderr
    assert not (run_dir / "results" / "verify_hidden_states.json").exists()


@pytest.mark.live
def test_two_ranks_give_the_targets_states_and_labels(
    make_run: Run, step: Any, host_python: str, host_environment: dict[str, str], toy_work_dir: Path
) -> None:
    run_dir = make_run("toy-qwen3-moe", tensor_parallel_size=2, temperature=0, max_model_len=64, max_new_tokens=48)
    model_dir, prompts = toy_work_dir / "models" / "toy-qwen3-moe", toy_work_dir / "prompts" / "toy-qwen3-moe.jsonl"
    command = [host_python, HOST_SCRIPTS / "greedy_traces.py", model_dir, prompts, "12", "60"]
    traces = subprocess.run(command, env=host_environment, capture_output=True, timeout=120)
    assert traces.returncode == 0, traces.stderr
    (run_dir / "traces" / "traces.jsonl").write_bytes(traces.stdout)
    lengths = [
        len(trace["prompt_token_ids"] + trace["token_ids"]) for trace in map(json.loads, traces.stdout.splitlines())
    ]
    assert max(lengths) > 63, "no trace is long enough to be cut"
    num_tokens = sum(min(length, 63) for length in lengths)  # rows are cut to max_model_len - 1

    done = step("extract_hidden_states", run_dir)
    assert done.returncode == 0, done.stderr
    result = _result(run_dir, "extract_hidden_states")
    assert (result["rows"], result["resumed_rows"], result["tokens"]) == (12, 0, num_tokens)
    assert result["num_bytes"] == sum(_state_file(run_dir, row).stat().st_size for row in range(12))
    assert result["hidden_size"] == _config(model_dir)["hidden_size"]
    assert _names(run_dir) == {"manifest.jsonl", *(f"hs_{row}.safetensors" for row in range(12))}
    _assert_states_are_right(_states_against_transformers(host_python, host_environment, run_dir, 0))

    verified = step("verify_hidden_states", run_dir)
    assert verified.returncode == 0, verified.stderr
    result = _result(run_dir, "verify_hidden_states")
    assert (result["rows"], result["tokens"], result["missing"]) == (12, num_tokens, 0)
    assert result["label_agreement"] >= 0.95
    assert len(result["rms_per_slot_median"]) == 4
    assert min(result["rms_per_slot_median"]) > 0

    _flip_last_byte(_state_file(run_dir, 5))
    os.truncate(_state_file(run_dir, 7), 1000)
    damaged = step("verify_hidden_states", run_dir)
    assert damaged.returncode == 1
    assert "0 of 12 rows are missing, 2 are bad" in damaged.stderr
    assert "(checksum)" in damaged.stderr
    assert sorted(_manifest(run_dir)) == [row for row in range(12) if row not in (5, 7)]


@pytest.mark.live
def test_a_killed_extraction_redoes_only_what_is_missing(
    make_run: Run, step: Any, host_python: str, host_environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = make_run("toy-qwen3-moe")
    num_rows, vocab_size = 300, _config(tmp_path / "models" / "toy-qwen3-moe")["vocab_size"]
    lengths = [20 + row % 100 for row in range(num_rows)]
    _write_random_traces(run_dir, lengths, vocab_size)
    command = [host_python, "-m", "eagle3.remote", "extract_hidden_states", "--run-dir", str(run_dir)]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, env=host_environment, stdout=log, stderr=log, start_new_session=True)
    _wait_for_rows(run_dir, 20, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    before = _manifest(run_dir)
    assert 20 <= len(before) < num_rows
    for row, entry in before.items():
        assert _state_file(run_dir, row).stat().st_size == entry["num_bytes"]
    inodes = {row: _state_file(run_dir, row).stat().st_ino for row in before}
    truncated, changed, lost = sorted(before)[:3]
    os.truncate(_state_file(run_dir, truncated), 1000)
    _state_file(run_dir, lost).unlink()
    _change_last_token(run_dir, changed, vocab_size)
    with open(run_dir / "hidden_states" / "manifest.jsonl", "a") as manifest:
        manifest.write('{"row": 299, "trace')  # the line that the kill cut
    _state_file(run_dir, 299).write_bytes(b"an orphan: renamed, but not in the manifest")
    (run_dir / "hidden_states" / "hs_298.safetensors.lock").touch()

    done = step("extract_hidden_states", run_dir)
    assert done.returncode == 0, done.stderr
    result = _result(run_dir, "extract_hidden_states")
    assert (result["rows"], result["resumed_rows"]) == (num_rows, len(before) - 3)
    assert result["tokens"] == sum(lengths)
    assert _names(run_dir) == {"manifest.jsonl", *(f"hs_{row}.safetensors" for row in range(num_rows))}
    after = _manifest(run_dir)
    assert {row: entry["tokens"] for row, entry in after.items()} == dict(enumerate(lengths))
    for row, inode in inodes.items():
        redone = row in (truncated, changed, lost)
        assert (_state_file(run_dir, row).stat().st_ino == inode and after[row] == before[row]) != redone
    assert after[changed]["source"] != before[changed]["source"]

    complete = step("extract_hidden_states", run_dir)  # nothing to do: no engine
    assert complete.returncode == 0
    assert "engine_init" not in complete.stderr
    assert _result(run_dir, "extract_hidden_states")["resumed_rows"] == num_rows

    # every file is right, but random tokens are not what this target would say: the label check must notice
    verified = step("verify_hidden_states", run_dir)
    assert verified.returncode == 1
    assert "the labels are not the target's" in verified.stderr
    assert "missing" not in verified.stderr


@pytest.mark.live
def test_rows_that_cannot_be_written_fail_after_one_retry_and_the_rest_stays(
    make_run: Run, host_python: str, host_environment: dict[str, str], tmp_path: Path
) -> None:
    """An MLA target, whose worker meets the kernel's own `File too large` on its last two rows."""
    run_dir = make_run("toy-mla")
    lengths = [16 + row % 16 for row in range(150)] + [200, 220]
    _write_random_traces(run_dir, lengths, _config(tmp_path / "models" / "toy-mla")["vocab_size"])
    command = [host_python, "-m", "eagle3.remote", "extract_hidden_states", "--run-dir", str(run_dir)]
    process = subprocess.Popen(
        command, env=host_environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    largest_small_row = 4 * 32 * _config(tmp_path / "models" / "toy-mla")["hidden_size"] * 2 + 4096
    _wait_for_rows(run_dir, 1, process)
    for pid in set(_processes_of_session(process.pid)) - {process.pid}:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest_small_row, largest_small_row))
    log = process.communicate(timeout=START_LIMIT_SECONDS)[0].decode()

    assert process.returncode == 1, log
    assert "2 of 152 rows failed 2 times, first row" in log
    assert "File too large" in log.splitlines()[-1]
    assert log.count("trying once more") == 2
    assert "150 rows are whole" in log
    assert sorted(_manifest(run_dir)) == list(range(150))
    _wait_for_end_of_session(process.pid)
    _assert_states_are_right(_states_against_transformers(host_python, host_environment, run_dir, 15))


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x01
    path.write_bytes(content)


def _change_last_token(run_dir: Path, row: int, vocab_size: int) -> None:
    path = run_dir / "traces" / "traces.jsonl"
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    ids = traces[row]["token_ids"]
    ids[-1] = 3 + (ids[-1] - 2) % (vocab_size - 3)
    path.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
