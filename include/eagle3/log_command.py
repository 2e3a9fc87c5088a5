"""`eagle3 log FILE`: what the sensors know, for any log file that a person has."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.pipeline.log_reading import Process, read_log

CHUNK_BYTES = 1 << 20
CANNOT_READ = 2


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "read a log: phase, progress, and why it died"
    parser = verbs.add_parser("log", help=text, description=text)
    parser.add_argument("file", metavar="FILE", help="the log; - for standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quiet-for", type=float, metavar="SECONDS", help="how long nothing was written any more")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--alive", dest="is_alive", action="store_true", default=None, help="its process runs")
    state.add_argument("--dead", dest="is_alive", action="store_false", help="its process is gone")
    parser.add_argument("--exit-code", type=int, metavar="N", help="how its process ended; negative for a signal")


def run(options: argparse.Namespace) -> int:
    if options.is_alive and options.exit_code is not None:
        raise ConfigError("--alive and --exit-code contradict each other: what ended does not run")
    process = Process(options.is_alive, options.exit_code, options.quiet_for)
    try:
        reading = read_log(_chunks(options.file), process)
    except OSError as error:
        print(f"eagle3 log: cannot read {options.file}: {error.strerror}", file=sys.stderr)
        return CANNOT_READ
    line = reading.pop("line")
    if options.json:
        print(json.dumps(reading))
    else:
        _print(reading, line)
    return 0


def _chunks(path: str) -> Iterator[bytes]:
    if path == "-":
        path = "/dev/stdin"
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _print(reading: dict[str, Any], line: str) -> None:
    print(line if reading["phase"] != "unknown" else "nothing in this log is known to any dialect")
    if reading["fatal"]:
        what = "hangs" if reading["hangs"] else "failed"
        print(f"{what}: {reading['failure_kind'] or 'no known cause'}")
        if reading["decisive_line"]:
            print(f"  {reading['decisive_line']}")
        print(f"  {reading['advice']}")
