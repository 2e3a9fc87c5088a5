"""`eagle3`: the console command of the control environment."""

import argparse
import json
import signal
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle3 import job_command, log_command
from eagle3.contract.errors import ConfigError
from eagle3.demo import lifecycle
from eagle3.demo.follow import PipelineApi, follow
from eagle3.demo.site import AIRFLOW_USER, Site

LOCAL_PRESETS = ("demo", "toy")  # those whose targets this project can make


def main() -> int:
    parser = argparse.ArgumentParser(prog="eagle3", description="EAGLE-3 draft models on remote GPU hosts, by Airflow.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, text in (
        ("demo", "run the whole pipeline on this machine, follow it, and stop what it started"),
        ("up", "start Airflow and the demo's GPU host, and leave them running"),
    ):
        command = verbs.add_parser(verb, help=text, description=text)
        command.add_argument("--preset", choices=LOCAL_PRESETS, default="demo", help="which target (default: demo)")
        if verb == "demo":
            command.add_argument("--conf", type=json.loads, default={}, help="further values of the run, as JSON")
    job_command.add_parser(verbs)
    log_command.add_parser(verbs)
    verbs.add_parser("down", help="stop what `up` started, and the jobs of its runs")
    options = parser.parse_args()
    site = Site.of_checkout()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that a `finally` runs
    try:
        if options.verb == "demo":
            return demo(site, options.preset, options.conf)
        if options.verb == "log":
            return log_command.run(options)
        if options.verb == "job":
            job_command.run(options)
        elif options.verb == "up":
            up(site, options.preset)
        else:
            lifecycle.down(site)
    except ConfigError as error:
        print(f"eagle3 {options.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"eagle3 {options.verb}: interrupted", file=sys.stderr)
        return 130
    return 0


def up(site: Site, preset: str) -> None:
    """Start and stay; a start that fails half-way takes back what it started."""
    was_up = lifecycle.is_up(site)
    try:
        lifecycle.up(site, preset)
    except BaseException:
        if not was_up:
            _stop(site)
        raise
    print(f"Airflow runs at {site.url}, login {AIRFLOW_USER}, password {site.password}")
    print("Trigger eagle3_pipeline there; `make down` stops everything.")


def _stop(site: Site) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it running
    lifecycle.down(site)


def demo(site: Site, preset: str, conf: dict[str, Any]) -> int:
    """Everything from nothing to a report. What was already up stays up."""
    was_up = lifecycle.is_up(site)
    console = Console()
    try:
        lifecycle.up(site, preset)
        api = PipelineApi(site)
        run_id = api.trigger({"preset": preset, **conf})
        console.print(
            f"run {run_id} of eagle3_pipeline; watch it at {site.url} (login {AIRFLOW_USER}, {site.password})"
        )
        succeeded = follow(api, console)
        if not succeeded:
            console.print(f"the run failed; the reason is above, all logs are at {site.url} and in {site.root}")
            return 1
        _print_result(api, console)
        return 0
    finally:
        if not was_up:
            print("stopping what was started", file=sys.stderr)
            _stop(site)


def _print_result(api: PipelineApi, console: Console) -> None:
    report, baseline, draft = (
        api.xcom(task_id, "return_value") for task_id in ("report", "measure_baseline", "evaluate_draft")
    )
    table = Table(title="EAGLE-3 draft head in the live server")
    for column in ("", "no speculation", "with the draft"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("tokens/s", f"{baseline['tokens_per_second']:.1f}", f"{draft['tokens_per_second']:.1f}")
    table.add_row("acceptance length", "1.00", f"{draft['acceptance_length']:.2f}")
    for position, acceptance in enumerate(draft["acceptance_per_position"], start=1):
        table.add_row(f"accepted at position {position}", "", f"{100 * acceptance:.1f} %")
    table.add_row("held-out prompts", f"{baseline['prompts']}", f"{draft['prompts']}")
    console.print(table)
    console.print(f"report: {report['report']}", soft_wrap=True)
    console.print(f"acceptance length {draft['acceptance_length']:.2f} (untrained 1.00)", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
