"""`eagle3 log` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "log_corpus"
KEYS = ["phase", "done", "total", "unit", "elapsed_s", "rate", "eta_s"]
KEYS += ["fatal", "failure_kind", "decisive_line", "hangs", "advice"]


def log(*arguments: str, content: bytes = b"") -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("eagle3")), "log", *arguments]
    ended = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(command, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def reference_case() -> bytes:
    return json.loads((CORPUS / "001-vllm-tp8-64shards-slow.json").read_text())["log"].encode()


def test_a_file_and_standard_input_give_the_same_object(tmp_path):
    (tmp_path / "a.log").write_bytes(reference_case())
    ended = log("--json", str(tmp_path / "a.log"))
    reading = json.loads(ended.stdout)
    assert (ended.returncode, list(reading)) == (0, KEYS)
    assert (reading["phase"], reading["done"], reading["total"], reading["unit"]) == (
        "loading_weights",
        42,
        64,
        "shards",
    )
    assert (reading["elapsed_s"], reading["eta_s"], reading["fatal"]) == (981, 510, False)
    assert log("--json", "-", content=reference_case()).stdout == ended.stdout


def test_for_a_person_it_is_the_line_of_the_task_log_and_the_cause():
    assert "loading weights 42/64 shards (65 %)" in log("-", content=reference_case()).stdout
    failure = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    said = log("-", content=failure).stdout
    assert "failed: cuda_oom" in said
    assert "CUDA out of memory" in said
    assert "lower gpu_memory_utilization" in said


def test_a_hang_needs_the_silence():
    assert "hangs: hang" in log("-", "--alive", "--quiet-for", "36000", content=reference_case()).stdout
    assert "hangs" not in log("-", "--alive", content=reference_case()).stdout


def test_what_cannot_be_read_is_said_in_one_line(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        ended = log(str(path))
        assert ended.returncode == 2
        assert str(path) in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    assert log("-", "--alive", "--exit-code", "1").returncode == 1
