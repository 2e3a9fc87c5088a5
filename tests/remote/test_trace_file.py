"""traces.jsonl under the accidents it must survive, and those it must refuse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_dir import RunDir
from eagle3.remote.dataset import Prompt
from eagle3.remote.trace_file import TraceFile, summarise

PROMPTS = [Prompt(f"p{number}", [{"role": "user", "content": f"question {number}"}]) for number in range(3)]
MADE_WITH = {"temperature": 0.6, "seed": 1}


def trace(prompt: Prompt, **values: Any) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "prompt": prompt.messages,
        "prompt_token_ids": [1, 2],
        "token_ids": [3, 4, 5],
        "reasoning": "so",
        "content": "yes",
        "finish_reason": "stop",
        **values,
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path)
    with TraceFile.opened(run_dir, PROMPTS, MADE_WITH) as traces:
        traces.append(trace(PROMPTS[0]))
        traces.append(trace(PROMPTS[1], reasoning=None, finish_reason="length"))
    return run_dir


def test_a_half_written_line_is_cut_off_on_resume(run_dir: RunDir) -> None:
    whole = run_dir.traces_path.read_bytes()
    run_dir.traces_path.write_bytes(whole[:-20])
    with TraceFile.opened(run_dir, PROMPTS, MADE_WITH) as traces:
        assert set(traces.done) == {"p0"}
        traces.append(trace(PROMPTS[1]))
    assert [json.loads(line)["id"] for line in run_dir.traces_path.read_text().splitlines()] == ["p0", "p1"]


def test_summary_counts_the_whole_file(run_dir: RunDir) -> None:
    assert summarise(run_dir.traces_path) == {
        "num_traces": 2,
        "prompt_tokens": 4,
        "generated_tokens": 6,
        "rows_with_reasoning": 1,
        "finish_reasons": {"stop": 1, "length": 1},
    }


def test_other_settings_are_refused_by_name(run_dir: RunDir) -> None:
    with pytest.raises(ConfigError, match=r"temperature: 0\.6 -> 1\.0"):
        TraceFile.opened(run_dir, PROMPTS, {**MADE_WITH, "temperature": 1.0})
    with TraceFile.opened(run_dir, PROMPTS, MADE_WITH) as traces:
        assert set(traces.done) == {"p0", "p1"}


@pytest.mark.parametrize(
    "prompts", [PROMPTS[1:], [Prompt("p0", [{"role": "user", "content": "changed"}]), *PROMPTS[1:]]]
)
def test_traces_of_other_prompts_are_refused(run_dir: RunDir, prompts: list[Prompt]) -> None:
    with pytest.raises(ConfigError, match="'p0' does not belong"):
        TraceFile.opened(run_dir, prompts, MADE_WITH)


def test_a_second_writer_is_refused(run_dir: RunDir, repo_root: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, time; f = open({str(run_dir.traces_path)!r}, 'ab'); "
            "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another process is writing"):
            TraceFile.opened(run_dir, PROMPTS, MADE_WITH)
    finally:
        holder.kill()
        holder.wait()
