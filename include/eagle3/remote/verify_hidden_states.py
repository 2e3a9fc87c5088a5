"""Step verify_hidden_states: every row's states are there, whole and right, and the labels are the target's own.

Runs on the GPU host: `python -m eagle3.remote verify_hidden_states --run-dir DIR`. Reads every byte once.
"""

import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eagle3.contract.errors import JobFailed
from eagle3.remote.dataset import Row, read_rows
from eagle3.remote.hidden_states import (
    BadStates,
    StateFile,
    StateStore,
    checksum_of,
    measure_states,
    read_manifest,
    state_path,
    write_manifest,
)
from eagle3.remote.label_check import LabelAgreement, measure_label_agreement
from eagle3.remote.step import Step

MAX_READERS = 8
REPORT_EVERY_ROWS = 16


def run(step: Step) -> dict[str, Any]:
    step.events.phase("verifying")
    rows = read_rows(step)
    manifest = read_manifest(step.run_dir)
    missing, bad = _check_files(step, rows, manifest)
    if missing or bad:
        # a struck row is missing for the extraction, which redoes it
        write_manifest(step.run_dir, (entry for entry in manifest.values() if entry.row not in bad))
        raise JobFailed("states_incomplete", _describe(step, len(rows), missing, bad))
    agreement = measure_label_agreement(step, rows)
    step.events.metric("label_agreement", round(agreement.observed, 4))
    if agreement.is_broken:
        raise JobFailed("labels_broken", _describe_labels(step, agreement))
    entries = [manifest[row.index] for row in rows]
    return {
        "rows": len(rows),
        "tokens": sum(entry.tokens for entry in entries),
        "num_bytes": sum(entry.num_bytes for entry in entries),
        "missing": 0,
        "rms_per_slot_median": [
            statistics.median(slot) for slot in zip(*(entry.rms_per_slot for entry in entries), strict=True)
        ],
        "label_agreement": round(agreement.observed, 4),
        "label_agreement_expected": round(agreement.expected, 4),
        "label_positions": agreement.positions,
    }


def _check_files(step: Step, rows: list[Row], manifest: dict[int, StateFile]) -> tuple[list[int], dict[int, str]]:
    """The rows without an entry in the manifest, and the bad ones with the reason."""
    missing: list[int] = []
    bad: dict[int, str] = {}
    total_tokens, tokens = sum(len(row.input_ids) for row in rows), 0
    for number, (row, verdict) in enumerate(_verdicts(step, rows, manifest), start=1):
        tokens += len(row.input_ids)
        if row.index not in manifest:
            missing.append(row.index)
        elif verdict:
            bad[row.index] = verdict
        if number % REPORT_EVERY_ROWS == 0 or number == len(rows):
            step.events.progress(tokens, total_tokens, "tokens")
            step.events.metric("rows_done", number)
    return missing, bad


def _verdicts(step: Step, rows: list[Row], manifest: dict[int, StateFile]) -> Iterator[tuple[Row, str | None]]:
    store = StateStore(step)

    def verdict(row: Row) -> str | None:
        entry = manifest.get(row.index)
        return _what_is_wrong(step, store, row, entry) if entry else None

    with ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1)) as pool:
        yield from zip(rows, pool.map(verdict, rows), strict=True)


def _what_is_wrong(step: Step, store: StateStore, row: Row, entry: StateFile) -> str | None:
    path = state_path(step.run_dir, row.index)
    if entry.source != store.source_of(row):
        return "made from other token ids, another target or other taps"
    if not path.exists():
        return f"{path.name} is not there"
    content = path.read_bytes()
    if len(content) != entry.num_bytes:
        return f"{path.name} has {len(content)} bytes, the manifest says {entry.num_bytes}"
    if checksum_of(content) != entry.checksum:
        return f"{path.name} has changed since it was written (checksum)"
    try:
        measure_states(content, row.input_ids, len(step.spec.after_blocks))
    except BadStates as error:
        return f"{path.name}: {error}"
    return None


def _describe(step: Step, num_rows: int, missing: list[int], bad: dict[int, str]) -> str:
    parts = [f"{len(missing)} of {num_rows} rows are missing, {len(bad)} are bad in {step.run_dir.hidden_states_dir}"]
    if missing:
        parts.append(f"first missing row {missing[0]}")
    if bad:
        row, reason = next(iter(bad.items()))
        parts.append(f"first bad row {row}: {reason}")
    return "; ".join(parts) + (
        f". Next: python -m eagle3.remote extract_hidden_states --run-dir {step.run_dir.root} (it does only these rows)"
    )


def _describe_labels(step: Step, agreement: LabelAgreement) -> str:
    return (
        "the labels are not the target's: argmax(lm_head(norm(last tap))) is the trace's next token at "
        f"{agreement.observed:.1%} of {agreement.positions} positions, {agreement.expected:.1%} expected at "
        f"temperature {step.spec.temperature} (at least {agreement.lowest_plausible:.1%}). Likely the last tap is not "
        f"the final block (after_blocks {step.spec.after_blocks}), or the traces come from another checkpoint or "
        "temperature. "
        f"Compare the server's model with {step.model_dir}, then run generate_traces or extract_hidden_states again"
    )
