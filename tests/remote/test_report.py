"""report as the host runs it, on results as the steps write them: what ran is shown, what did not is said."""

import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eagle3.contract.run_dir import RunDir, read_json, write_json

INCLUDE = Path(__file__).resolve().parents[2] / "include"
RESULTS: dict[str, dict[str, Any]] = {
    "preflight": {
        "checks": [{"name": "disk", "verdict": "warning", "message": "<nearly> full"}],
        "weight_bytes": 547e9,
    },
    "generate_traces": {"num_traces": 64, "finish_reasons": {"stop": 41, "length": 23}, "seconds": 183.2},
    "extract_hidden_states": {
        "tokens": 16431,
        "num_bytes": 1_204_000_000_000,
        "load_seconds": 31,
        "extract_seconds": 44,
    },
    "build_vocab_mapping": {"draft_vocab_size": 8192, "coverage": 1.0, "held_out_coverage": 0.9731},
    "train_draft": {
        "epochs": [
            {"epoch": 0, "train_loss": 9.1, "val_loss": 9.3, "full_acc": [0.1, 0.02]},
            {"epoch": 1, "train_loss": 7.5, "val_loss": 8.25, "full_acc": [0.2, 0.04]},
        ],
        "seconds": 4000,
    },
    "measure_baseline": {"tokens_per_second": 68.04},
    "evaluate_draft": {
        "acceptance_length": 1.412,
        "acceptance_per_position": [0.312, 0.081, 0.019],
        "tokens_per_second": 90.5,
        "speedup": 1.33,
        "outputs_identical": 15,
        "outputs_compared": 16,
    },
}


class Page(HTMLParser):
    """The page's tags with their attributes, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "line", "rect"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.rows[-1][-1] += data


@pytest.fixture
def run_dir(tmp_path: Path, host_python: str) -> RunDir:
    run = RunDir(tmp_path / "runs" / "nightly-1")
    spec = {
        "work_dir": str(tmp_path),
        "host_python": host_python,
        "model_path": "models/tiny",
        "served_model_name": "tiny",
        "after_blocks": [0, 2, 4, 5],
        "prompts_file": "prompts.jsonl",
        "num_samples": 64,
        "server_args": ["--note=<script>alert(1)</script>|"],
        "seed": 17,
    }
    write_json(run.run_spec_path, spec)
    return run


def report(run_dir: RunDir, host_python: str) -> dict[str, Any]:
    subprocess.run(
        [host_python, "-m", "eagle3.remote", "report", "--run-dir", str(run_dir.root)],
        env={**os.environ, "PYTHONPATH": str(INCLUDE)},
        check=True,
        capture_output=True,
    )
    return dict(read_json(run_dir.result_path("report")))


def write_results(run_dir: RunDir, results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        write_json(run_dir.result_path(name), result)


def test_a_whole_run(run_dir: RunDir, host_python: str) -> None:
    write_results(run_dir, RESULTS)
    result = report(run_dir, host_python)
    assert (result["acceptance_length"], result["speedup"]) == (1.412, 1.33)
    assert set(result["steps_run"]) == set(RESULTS)
    assert {"stop_server", "verify_hidden_states"} <= set(result["steps_not_run"])

    rows = Page(Path(result["report"]).read_text()).rows
    for row in (
        ["acceptance length, served", "1.412 of at most 4"],
        ["speed-up over no speculation", "1.33 times"],
        ["tokens/s with the draft head", "90.5"],
        ["tokens/s without speculation", "68.04"],
        ["same greedy outputs", "15 of 16"],
        ["held-out coverage of the draft vocabulary", "97.31%"],
        ["tokens with hidden states", "16,431"],
        ["size", "1.204 TB"],
        ["weight size", "547 GB"],
        ["finish reasons", "stop: 41, length: 23"],
        ["1", "7.5", "8.25", "0.2, 0.04"],
        ["disk", "warning", "<nearly> full"],
        ["acceptance per position", "0.312, 0.081, 0.019"],
        ["seed", "17"],
        ["after_blocks", "0, 2, 4, 5"],
    ):
        assert row in rows
    took = {row[0]: row[3] for row in rows if len(row) == 4 and row[1] == "done"}
    assert took["train_draft"] == "1 h 6 min"
    assert took["extract_hidden_states"] == "1 min 15 s"
    assert took["measure_baseline"] == "not reported"


def test_the_page_stands_alone_and_escapes(run_dir: RunDir, host_python: str) -> None:
    write_results(run_dir, RESULTS)
    page = Page(Path(report(run_dir, host_python)["report"]).read_text())
    assert not page.open
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert not any(attribute in attributes for _, attributes in page.tags for attribute in ("src", "href", "onload"))
    assert (names.count("svg"), names.count("polyline"), names.count("rect")) == (2, 2, 3)
    heights = [float(attributes["height"] or 0) for tag, attributes in page.tags if tag == "rect"]
    assert heights == sorted(heights, reverse=True)
    assert heights[1] / heights[0] == pytest.approx(0.081 / 0.312, abs=0.01)


def test_markdown_and_json_say_the_same(run_dir: RunDir, host_python: str) -> None:
    write_results(run_dir, RESULTS)
    result = report(run_dir, host_python)
    markdown = Path(result["markdown"]).read_text()
    assert markdown.startswith("# EAGLE-3 run nightly-1\n")
    assert "| acceptance length, served | 1.412 of at most 4 |" in markdown
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    document = read_json(Path(result["json"]))
    assert document["results"]["evaluate_draft"] == RESULTS["evaluate_draft"]
    assert document["results"]["stop_server"] is None
    assert {"eagle3-pipeline", "python", "torch", "transformers", "speculators"} <= set(document["versions"])


def test_what_has_not_run_is_said_and_not_made_up(run_dir: RunDir, host_python: str) -> None:
    result = report(run_dir, host_python)
    assert (result["acceptance_length"], result["speedup"], result["steps_run"]) == (None, None, [])
    page = Page(Path(result["report"]).read_text())
    assert ["acceptance length, served", "not run (evaluate_draft)"] in page.rows
    assert ["same greedy outputs", "not run (evaluate_draft)"] in page.rows
    assert all(row[1] == "not run" for row in page.rows if row and row[0] in result["steps_not_run"])
    assert "svg" not in [tag for tag, _ in page.tags]


def test_a_result_without_the_figure_says_so(run_dir: RunDir, host_python: str) -> None:
    results = {
        "evaluate_draft": {},
        "train_draft": {"epochs": [{"epoch": 0, "train_loss": 9.0, "val_loss": float("nan")}]},
    }
    write_results(run_dir, results)
    page = Page(Path(report(run_dir, host_python)["report"]).read_text())
    assert ["acceptance length, served", "not reported"] in page.rows
    assert [tag for tag, _ in page.tags].count("polyline") == 1


def test_a_second_report_replaces_the_first(run_dir: RunDir, host_python: str) -> None:
    assert report(run_dir, host_python)["acceptance_length"] is None
    write_results(run_dir, RESULTS)
    assert report(run_dir, host_python)["acceptance_length"] == 1.412
    assert sorted(path.name for path in run_dir.report_dir.iterdir()) == ["report.html", "report.json", "report.md"]
