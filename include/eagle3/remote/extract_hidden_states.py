"""Step extract_hidden_states: prefills every trace through the full target and keeps the states of the taps.

Runs on the GPU host: `python -m eagle3.remote extract_hidden_states --run-dir DIR`. Run again, it does what is missing.
"""

import json
import shutil
import time
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError, JobFailed
from eagle3.contract.event import job_log_path
from eagle3.remote.dataset import Row, read_rows
from eagle3.remote.extraction_engine import ExtractionEngine, vllm_version, wait_for_file
from eagle3.remote.hidden_states import BadStates, StateFile, StateStore, state_path
from eagle3.remote.server_log import load_seconds as read_load_seconds
from eagle3.remote.step import Step
from eagle3.remote.weight_files import shard_sizes

MIN_FREE_BYTES = 2 * 1024**3  # below this, no more rows are submitted: the rest of the host needs room too
BYTES_PER_VALUE = 2  # states are kept in the engine's 16-bit type
FINALISER_THREADS = 4
MAX_ATTEMPTS = 2
MAX_FAILED_ROWS = 8  # so many rows that failed twice mean that something is wrong with all of them
REPORT_SECONDS = 1.0


def run(step: Step) -> dict[str, Any]:
    step.events.phase("starting")
    rows = read_rows(step)
    if not rows:
        raise ConfigError(f"{step.run_dir.traces_path} holds no traces: run generate_traces again")
    hidden_size = _check_taps(step)
    store = StateStore(step)
    whole = store.open(rows)
    missing = [row for row in rows if row.index not in whole]
    extraction = _Extraction(step, store, rows, whole, hidden_size)
    extraction.require_space_for(missing)
    load_seconds = extract_seconds = 0.0
    if missing:
        step.events.phase("engine_init")
        started = time.monotonic()
        with ExtractionEngine(step, store.scratch_dir) as engine:
            load_seconds = time.monotonic() - started
            step.events.metric("load_seconds", round(load_seconds, 1))
            _record_load(step)
            step.events.phase("generating")
            started = time.monotonic()
            extraction.extract(engine, missing)
            extract_seconds = time.monotonic() - started
    shutil.rmtree(store.scratch_dir)
    extracted_tokens = sum(len(row.input_ids) for row in missing)
    return {
        "rows": len(rows),
        "resumed_rows": len(rows) - len(missing),
        "tokens": sum(len(row.input_ids) for row in rows),
        "num_bytes": sum(entry.num_bytes for entry in extraction.entries.values()),
        "load_seconds": round(load_seconds, 1),
        "extract_seconds": round(extract_seconds, 1),
        "tokens_per_second": round(extracted_tokens / extract_seconds, 1) if missing else None,
        "engine_layer_ids": step.spec.engine_layer_ids,
        "after_blocks": step.spec.after_blocks,
        **_shape_of(state_path(step.run_dir, rows[0].index)),
        "vllm_version": vllm_version(),
    }


class _Extraction:
    """Rows on their way from the engine to the disk.

    At most twice the engine's batch is on the way: while the disk is the slower one, nothing piles up in memory.
    """

    def __init__(
        self, step: Step, store: StateStore, rows: list[Row], whole: dict[int, StateFile], hidden_size: int
    ) -> None:
        self._events = step.events
        self._store = store
        self._folder = step.run_dir.hidden_states_dir
        self._max_in_flight = 2 * step.spec.extraction_batch_size
        self._bytes_per_token = len(step.spec.after_blocks) * hidden_size * BYTES_PER_VALUE
        self._total_rows = len(rows)
        self._total_tokens = sum(len(row.input_ids) for row in rows)
        self.entries = dict(whole)
        self._attempts: Counter[int] = Counter()
        self._failures: dict[int, BadStates] = {}
        self._reported = 0.0

    def require_space_for(self, rows: list[Row]) -> None:
        """Raises JobFailed(disk_full) unless the rows' states fit beside the reserve."""
        needed = sum(len(row.input_ids) for row in rows) * self._bytes_per_token
        free = shutil.disk_usage(self._folder).free
        if rows and free < needed + MIN_FREE_BYTES:
            raise JobFailed(
                "disk_full",
                f"No space left on device for {self._folder}: {len(rows)} rows need {needed / 1e9:.2f} GB and "
                f"{MIN_FREE_BYTES / 1e9:.2f} GB stay in reserve, {free / 1e9:.2f} GB are free; "
                "free some space and run extract_hidden_states again: it goes on where it stopped",
            )

    def extract(self, engine: ExtractionEngine, rows: list[Row]) -> None:
        """Raises JobFailed(states_failed) with the count and the first reason when rows fail twice."""
        waiting = deque(rows)
        finalising: dict[Future[StateFile], Row] = {}
        self._report()
        with ThreadPoolExecutor(FINALISER_THREADS, thread_name_prefix="finalise") as pool:
            while waiting or engine.running or finalising:
                while waiting and len(engine.running) + len(finalising) < self._max_in_flight:
                    row = waiting.popleft()
                    self.require_space_for([row, *engine.running, *finalising.values()])
                    self._attempts[row.index] += 1
                    engine.submit(row, self._attempts[row.index])
                if engine.running:
                    for row, path in engine.finished():
                        finalising[pool.submit(self._finalise, row, path)] = row
                else:
                    wait(finalising, return_when=FIRST_COMPLETED)
                for future in [future for future in finalising if future.done()]:
                    if retry := self._settle(finalising.pop(future), future):
                        waiting.appendleft(retry)
        self._report(final=True)
        if self._failures:
            raise self._failed()

    def _finalise(self, row: Row, path: Path) -> StateFile:
        wait_for_file(path)
        return self._store.add(row, path)

    def _settle(self, row: Row, future: Future[StateFile]) -> Row | None:
        """Counts a finished row; returns it when it is to be tried again."""
        try:
            self.entries[row.index] = future.result()
        except BadStates as error:
            if self._attempts[row.index] < MAX_ATTEMPTS:
                self._events.warning(f"row {row.index}: {error}; trying once more")
                return row
            self._failures[row.index] = error
            if len(self._failures) >= MAX_FAILED_ROWS:
                raise self._failed() from error
        self._report()
        return None

    def _failed(self) -> JobFailed:
        row, error = next(iter(self._failures.items()))
        return JobFailed(
            "states_failed",
            f"{len(self._failures)} of {self._total_rows} rows failed {MAX_ATTEMPTS} times, first row {row}: {error}; "
            f"{len(self.entries)} rows are whole in {self._folder} and stay. Look for 'Hidden-states write failed' in "
            "the log, then run extract_hidden_states again",
        )

    def _report(self, final: bool = False) -> None:
        if not final and time.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        self._events.progress(sum(entry.tokens for entry in self.entries.values()), self._total_tokens, "tokens")
        self._events.metric("rows_done", len(self.entries))


def _record_load(step: Step) -> None:
    """For the host's history: the engine itself says in the job's log how long the weights took."""
    log = job_log_path()
    seconds = read_load_seconds(log.read_text(errors="replace")) if log else None
    if seconds is not None:
        step.events.phase_took("loading_weights", seconds, len(shard_sizes(step.model_dir)), "shards")


def _check_taps(step: Step) -> int:
    """The target's hidden size. Raises ConfigError unless the last tap is its last block, where labels come from."""
    config_path = step.model_dir / "config.json"
    if not config_path.exists():
        raise ConfigError(f"no {config_path}: set model_path to the folder of the target")
    config = json.loads(config_path.read_text())
    config = config.get("text_config", config)
    last_block = config["num_hidden_layers"] - 1
    if step.spec.after_blocks[-1] != last_block:
        raise ConfigError(
            f"after_blocks {step.spec.after_blocks} must end with {last_block}, the last block of {step.model_dir}: "
            "its output is the label source"
        )
    return int(config["hidden_size"])


def _shape_of(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        states = file.get_slice("hidden_states")
        return {"hidden_size": states.get_shape()[-1], "dtype": states.get_dtype()}
