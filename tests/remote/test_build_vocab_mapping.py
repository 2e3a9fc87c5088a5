"""build_vocab_mapping as the host runs it, on small traces."""

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import RunDir, read_json, write_json

pytestmark = pytest.mark.live  # each run imports torch and speculators

END_OF_THINKING, END_OF_TURN, EOS = 297, 298, 299
TARGET_VOCAB_SIZE = 320


@pytest.fixture
def run_dir(tmp_path: Path, host_python: str) -> RunDir:
    model_dir = tmp_path / "models" / "tiny"
    special = {END_OF_THINKING: "</think>", END_OF_TURN: "<|im_end|>", EOS: "<eos>"}
    added = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, text in special.items()
    ]
    vocab = {f"w{i}": i for i in range(297)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    write_json(model_dir / "tokenizer.json", {"version": "1.0", "added_tokens": added, "model": model})
    write_json(
        model_dir / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    )
    write_json(model_dir / "config.json", {"model_type": "llama", "vocab_size": TARGET_VOCAB_SIZE, "eos_token_id": 310})
    write_json(model_dir / "generation_config.json", {"eos_token_id": [311, 299]})
    run = RunDir(tmp_path / "runs" / "r")
    write_json(
        run.run_spec_path,
        {
            "work_dir": str(tmp_path),
            "host_python": host_python,
            "model_path": "models/tiny",
            "served_model_name": "tiny",
            "after_blocks": [0, 1, 2, 3],
            "max_model_len": 512,
            "max_new_tokens": 256,
            "prompts_file": "prompts.jsonl",
            "num_samples": 20,
            "draft_vocab_size": 16,
        },
    )
    write_traces(run, [[100, 101, 102, 103] * 5 + [110 + number] for number in range(20)])
    return run


def write_traces(run: RunDir, answers: list[list[int]]) -> None:
    """Every prompt is full of token 5, which no answer holds."""
    run.traces_path.parent.mkdir(parents=True, exist_ok=True)
    with open(run.traces_path, "w") as file:
        for number, answer in enumerate(answers):
            file.write(json.dumps({"id": str(number), "prompt_token_ids": [5] * 50, "token_ids": answer}) + "\n")


def build(run: RunDir, host_python: str, host_environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [host_python, "-m", "eagle3.remote", "build_vocab_mapping", "--run-dir", str(run.root)],
        env=host_environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def built(run: RunDir, host_python: str, host_environment: dict[str, str]) -> dict[str, Any]:
    done = build(run, host_python, host_environment)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = read_json(run.result_path("build_vocab_mapping"))
    return result


def change_spec(run: RunDir, **values: Any) -> None:
    write_json(run.run_spec_path, {**read_json(run.run_spec_path), **values})


def draft_vocabulary(run: RunDir) -> list[int]:
    """The target ids in the draft, by d2t; and by t2d, which must say the same. Read from the .npy files' own bytes."""
    d2t = memoryview(npy_body(run.vocab_dir / "d2t.npy", "<i8")).cast("q").tolist()
    t2d = npy_body(run.vocab_dir / "t2d.npy", "|b1")
    ids = [index + offset for index, offset in enumerate(d2t)]
    assert ids == [token for token, in_draft in enumerate(t2d) if in_draft]
    assert len(t2d) == TARGET_VOCAB_SIZE
    return ids


def npy_body(path: Path, dtype: str) -> bytes:
    content = path.read_bytes()
    header_bytes = int.from_bytes(content[8:10], "little")
    assert ast.literal_eval(content[10 : 10 + header_bytes].decode())["descr"] == dtype
    return content[10 + header_bytes :]


def test_mapping_holds_generated_and_closing_tokens_and_follows_the_data(
    run_dir: RunDir, host_python: str, host_environment: dict[str, str]
) -> None:
    result = built(run_dir, host_python, host_environment)
    vocabulary = draft_vocabulary(run_dir)
    forced = [END_OF_THINKING, END_OF_TURN, EOS, 310, 311]  # none of them occurs in the traces
    assert result["forced_token_ids"] == forced
    assert set(forced) <= set(vocabulary)
    assert {100, 101, 102, 103} <= set(vocabulary)
    assert 5 not in vocabulary  # prompts do not count
    assert (result["draft_vocab_size"], result["target_vocab_size"]) == (16, TARGET_VOCAB_SIZE)
    assert result["distinct_tokens_seen"] == 24
    # 16 - 5 forced - 4 = 7 of the 20 tokens that occur once; held out: those of rows 0 and 10 are never among them.
    assert result["coverage"] == pytest.approx((400 + 7) / 420, abs=1e-6)
    assert result["held_out_coverage"] == pytest.approx(40 / 42, abs=1e-6)

    inode = (run_dir.vocab_dir / "d2t.npy").stat().st_ino
    again = built(run_dir, host_python, host_environment)
    assert {**again, "seconds": None} == {**result, "seconds": None}
    assert (run_dir.vocab_dir / "d2t.npy").stat().st_ino == inode  # the same data: used again

    write_traces(run_dir, [[200, 201, 202] * 5 for _ in range(20)])
    changed = built(run_dir, host_python, host_environment)
    assert changed["data_hash"] != result["data_hash"]
    assert {200, 201, 202} <= set(draft_vocabulary(run_dir))
    assert not {100, 101} & set(draft_vocabulary(run_dir))


@pytest.mark.parametrize(
    ("draft_vocab_size", "answer", "message"),
    [
        (TARGET_VOCAB_SIZE + 1, [100], "larger than the target's vocabulary (320"),
        (16, [TARGET_VOCAB_SIZE], "hold token id 320"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    run_dir: RunDir,
    host_python: str,
    host_environment: dict[str, str],
    draft_vocab_size: int,
    answer: list[int],
    message: str,
) -> None:
    change_spec(run_dir, draft_vocab_size=draft_vocab_size)
    write_traces(run_dir, [answer] * 20)
    done = build(run_dir, host_python, host_environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert not run_dir.vocab_dir.exists()
