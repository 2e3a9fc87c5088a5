"""`python -m eagle3.remote STEP --run-dir DIR`: run one step on the GPU host, by hand or under the supervisor.

A step is a module of `eagle3.remote` named in STEPS, with `run(step) -> dict`.
Exit status: 0 done; 2 the user must fix something; 1 the step failed.
"""

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.event import EventWriter
from eagle3.contract.run_dir import write_json
from eagle3.remote import history
from eagle3.remote.step import Step, load_step
from eagle3.remote.weight_files import shard_sizes

STEPS = (
    "preflight",
    "find_changes",
    "ensure_server",
    "generate_traces",
    "stop_server",
    "extract_hidden_states",
    "verify_hidden_states",
    "start_server",
    "build_vocab_mapping",
    "train_draft",
    "measure_baseline",
    "serve_draft",
    "evaluate_draft",
    "report",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eagle3.remote", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="the run's folder on this host")
    arguments = parser.parse_args()

    events = EventWriter.from_environment()
    events.started(arguments.step)
    try:
        result = run(load_step(arguments.step, arguments.run_dir, events))
    except ConfigError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        events.finished(error={"type": "ConfigError", "message": str(error)})
        return 2
    except Exception as error:  # noqa: BLE001 - whatever it was, it becomes the job's last event
        traceback.print_exc()
        events.finished(error={"type": type(error).__name__, "message": str(error)})
        return 1
    events.finished(result=result)
    return 0


def run(step: Step) -> dict[str, Any]:
    """The step's result, which is also on disk for later steps; its times go to the host's history."""
    started = time.monotonic()
    step.events.expected(history.last_times(step), shard_sizes(step.model_dir))
    done = False
    try:
        result = importlib.import_module(f"eagle3.remote.{step.name}").run(step)
        result.setdefault("seconds", round(time.monotonic() - started, 1))
        write_json(step.run_dir.result_path(step.name), result)
        done = True
    finally:
        history.append(step, done, time.monotonic() - started)
    return result


if __name__ == "__main__":
    sys.exit(main())
