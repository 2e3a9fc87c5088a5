"""The report's document as sections of text: headings, tables and charts, with units in words. Pure; on the host."""

import math
from dataclasses import dataclass, field
from typing import Any

NOT_RUN = "not run"
NOT_REPORTED = "not reported"
SHARES = {"coverage", "held_out_coverage", "label_agreement", "label_agreement_expected", "baseline_agreement"}
STEP_TITLES = {
    "preflight": "Preflight",
    "generate_traces": "Traces",
    "extract_hidden_states": "Hidden states",
    "verify_hidden_states": "Check of the hidden states",
    "build_vocab_mapping": "Draft vocabulary",
    "train_draft": "Training",
    "measure_baseline": "Without speculation",
    "evaluate_draft": "With the draft head",
}


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Chart:
    """`kind` is `lines` or `bars`; each series has one value for each label."""

    kind: str
    title: str
    labels: list[str]
    series: dict[str, list[float]]


@dataclass(frozen=True)
class Section:
    title: str
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    note: str = ""


def sections_of(document: dict[str, Any]) -> list[Section]:
    results = document["results"]
    return [
        _headline(document),
        _steps(document),
        *(_step_section(title, results[name]) for name, title in STEP_TITLES.items()),
        Section("Versions", [Table(["what", "version"], _pairs(document["versions"]))]),
        Section(
            "The run's values", [Table(["value", "set to"], [[k, _plain(v)] for k, v in document["spec"].items()])]
        ),
    ]


def _headline(document: dict[str, Any]) -> Section:
    def figure(step: str, name: str, suffix: str = "") -> str:
        result = document["results"][step]
        if result is None:
            return f"{NOT_RUN} ({step})"
        return shown(name, result[name]) + suffix if result.get(name) is not None else NOT_REPORTED

    at_most = document["spec"]["num_speculative_tokens"] + 1
    rows = [
        ["acceptance length, served", figure("evaluate_draft", "acceptance_length", f" of at most {at_most}")],
        ["speed-up over no speculation", figure("evaluate_draft", "speedup", " times")],
        ["tokens/s with the draft head", figure("evaluate_draft", "tokens_per_second")],
        ["tokens/s without speculation", figure("measure_baseline", "tokens_per_second")],
        ["same greedy outputs", _same_outputs(document["results"]["evaluate_draft"])],
        ["held-out coverage of the draft vocabulary", figure("build_vocab_mapping", "held_out_coverage")],
        ["traces", figure("generate_traces", "num_traces")],
        ["tokens with hidden states", figure("extract_hidden_states", "tokens")],
        ["seed", str(document["spec"]["seed"])],
    ]
    return Section("In short", [Table(["figure", "value"], rows)])


def _same_outputs(evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        return f"{NOT_RUN} (evaluate_draft)"
    if not {"outputs_identical", "outputs_compared"} <= evaluation.keys():
        return NOT_REPORTED
    return f"{evaluation['outputs_identical']} of {evaluation['outputs_compared']}"


def _steps(document: dict[str, Any]) -> Section:
    rows = []
    for name, result in document["results"].items():
        if result is None:
            rows.append([name, NOT_RUN, "", ""])
        else:
            rows.append([name, "done", document["finished"][name], _duration(result)])
    return Section("Steps", [Table(["step", "state", "result written", "took"], rows)])


def _duration(result: dict[str, Any]) -> str:
    """The step's own account: `seconds`, or the sum of its parts (`load_seconds`, `extract_seconds`)."""
    parts = [value for name, value in result.items() if name.endswith("_seconds") and value is not None]
    seconds = result.get("seconds", sum(parts) if parts else None)
    return shown("seconds", seconds) if seconds is not None else NOT_REPORTED


def _step_section(title: str, result: dict[str, Any] | None) -> Section:
    """Every field of the result: lists of records as tables of their own, the rest as name and value."""
    if result is None:
        return Section(title, note=NOT_RUN)
    records = {name: value for name, value in result.items() if _are_records(value)}
    tables = [Table(["figure", "value"], _pairs({k: v for k, v in result.items() if k not in records}))]
    for values in records.values():
        names = list(dict.fromkeys(name for value in values for name in value))
        cells = [[shown(name, value.get(name)) for name in names] for value in values]
        tables.append(Table([_words(name) for name in names], cells))
    return Section(title, tables, _charts(result))


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _charts(result: dict[str, Any]) -> list[Chart]:
    charts = []
    if epochs := result.get("epochs"):
        losses = {_words(name): [epoch.get(name, math.nan) for epoch in epochs] for name in ("train_loss", "val_loss")}
        whole = {name: values for name, values in losses.items() if all(map(math.isfinite, values))}
        labels = [str(epoch.get("epoch", "")) for epoch in epochs]
        if whole:
            charts.append(Chart("lines", "loss by epoch", labels, whole))
    if shares := result.get("acceptance_per_position"):
        labels = [str(position) for position in range(1, len(shares) + 1)]
        charts.append(Chart("bars", "share of drafts accepted, by draft position", labels, {"accepted": shares}))
    return charts


def _pairs(values: dict[str, Any]) -> list[list[str]]:
    return [[_words(name), shown(name, value)] for name, value in values.items()]


def _words(name: str) -> str:
    """A field's name for a person: the units are with the values (see `shown`)."""
    name = name.removeprefix("num_").replace("tokens_per_second", "tokens/s")
    for unit, words in (("seconds", "time"), ("bytes", "size")):
        if name == unit or name.endswith(f"_{unit}"):
            name = name.removesuffix(unit) + words
    return name.replace("_", " ")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def shown(name: str, value: Any) -> str:
    """A value for a person; the unit comes from its name."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(str(key), item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(shown(name, item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("seconds"):
        return _time(value)
    if name.endswith("_bytes"):
        return _size(value)
    if name in SHARES:
        return f"{value:.2%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _size(num_bytes: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes:.0f} B"
