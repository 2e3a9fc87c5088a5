"""The server's log as the host side reads it: real logs of many vLLM releases, and a load that is followed live."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.remote.server_log import STALL_SECONDS, LoadLog, decisive_line

CORPUS = Path(__file__).parents[1] / "log_corpus"


def case(name: str) -> dict[str, Any]:
    return json.loads((CORPUS / f"{name}.json").read_text())


@pytest.mark.parametrize(
    "name",
    [
        "068-free-memory-less-than-desired",
        "069-no-memory-for-kv-cache",
        "070-max-seq-len-larger-than-kv",
        "071-kv-needed-larger-v1",
        "074-worker-died-unexpectedly-hang",
        "079-nccl-unhandled-cuda-error-v1",
        "080-engine-core-init-failed-no-root-cause",
        "082-engine-process-failed-v0",
        "083-workerproc-init-failed",
        "090-rpc-timeout-sample-tokens",
        "091-rpc-timeout-execute-model",
        "092-safetensors-incomplete",
        "097-no-module-or-parameter",
        "102-extract-hs-vlm-validation",
        "108-port-in-use-tcpstore",
        "112-sigbus-shm-mp",
        "118-ready-timeout-engine-keeps-running",
    ],
)
def test_decisive_line_of_a_dead_server(name: str) -> None:
    known = case(name)
    line = decisive_line(known["log"])
    assert line is not None
    assert known["truth"]["decisive_line"] in line


@pytest.mark.parametrize(
    "name", ["130-error-retrieving-safetensors", "144-custom-allreduce-disabled", "151-nccl-warn-ras-bind"]
)
def test_harmless_lines_are_not_decisive(name: str) -> None:
    assert decisive_line(case(name)["log"]) is None


def test_argument_error_is_decisive() -> None:
    log = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --no-such-flag\n"
    assert decisive_line(log) == "api_server.py: error: unrecognized arguments: --no-such-flag"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_load_is_followed_through_half_lines(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    log = LoadLog(path, clock)
    assert log.read() == []
    bar = case("001-vllm-tp8-64shards-slow")["log"].encode()
    path.write_bytes(b"INFO 10-22 09:33:40 [model.py:1] Starting to load model /m...\n" + bar[:150])
    assert [(state.phase, state.shards) for state in log.read()] == [
        ("loading_weights", None),
        ("loading_weights", (39, 64)),
    ]
    with open(path, "ab") as file:
        file.write(bar[150:])
        file.write(
            b"(Worker_TP0 pid=1) INFO 10-22 09:43:40 [default_loader.py:1] Loading weights took 981.00 seconds\n"
        )
    assert [state.shards and state.shards[0] for state in log.read()] == [40, 41, 42, 42]
    assert log.state.phase == "post_load"


def test_repeated_words_do_not_hide_a_stall(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    log = LoadLog(path, clock)
    for minute in range(30):
        clock.now = 60.0 * minute
        with open(path, "a") as file:
            file.write(f"INFO 10-22 09:{minute:02d}:00 [shm.py:1] No available block found in {60 * minute} seconds\n")
        log.read()
    assert log.stalled_seconds is not None
    assert log.stalled_seconds > STALL_SECONDS["engine_init"]
    with open(path, "a") as file:
        file.write("Loading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n")
    log.read()
    assert log.stalled_seconds is None


def test_stall_limit_follows_the_pace_of_the_shards(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    log = LoadLog(path, clock)
    for done in range(4):
        clock.now = 200.0 * done
        with open(path, "a") as file:
            file.write(f"Loading safetensors checkpoint shards: {done:3d}% Completed | {done}/64 [00:00<?, 200s/it]\n")
        log.read()
    clock.now = 600.0 + 1900.0
    assert log.stalled_seconds is None
    clock.now = 600.0 + 2100.0
    assert log.stalled_seconds == 2100.0
