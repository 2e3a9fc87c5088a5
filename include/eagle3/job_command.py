"""`eagle3 job ...`: prints what orchestrate.jobs finds. Reads the connection from the Airflow that is set up here."""

import argparse
import json
import os
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from eagle3.contract.errors import ConfigError
from eagle3.demo.site import Site
from eagle3.pipeline.names import SSH_CONN_ID

TAIL_BYTES = 16_384


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "the jobs on a GPU host: list, show, tail, kill"
    actions = verbs.add_parser("job", help=text, description=text).add_subparsers(dest="action", required=True)
    for action, help_text in (
        ("list", "every job and how it is"),
        ("show", "all that is known of one job, as JSON"),
        ("tail", "the end of a job's log"),
        ("kill", "end a job's whole process tree"),
    ):
        parser = actions.add_parser(action, help=help_text, description=help_text)
        parser.add_argument("--host", default=SSH_CONN_ID, metavar="CONN", help=f"connection (default: {SSH_CONN_ID})")
        if action != "list":
            parser.add_argument("job", metavar="JOB", help="a job's id, as `list` shows it")


def run(options: argparse.Namespace) -> None:
    _provide_connection(options.host)
    from eagle3.orchestrate.jobs import host_jobs  # imports Airflow, which takes seconds

    with host_jobs(options.host) as jobs:
        if options.action == "list":
            _print_list(jobs.list())
        elif options.action == "show":
            print(json.dumps(jobs.show(options.job), indent=1))
        elif options.action == "tail":
            print(jobs.tail(options.job, TAIL_BYTES))
        else:
            state = jobs.kill(options.job)
            print(f"{options.job}: {state['status']}" + (f", left: {state['left']}" if state["left"] else ""))


def _provide_connection(conn_id: str) -> None:
    """Airflow resolves connections from the environment everywhere; from its database only inside its own tasks."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable in os.environ:
        return
    if "AIRFLOW_HOME" not in os.environ:
        os.environ.update(Site.of_checkout().airflow_environment())
    command = [sys.executable, "-m", "airflow", "connections", "get", conn_id, "-o", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ConfigError(f"Airflow has no connection {conn_id!r}; it said: {result.stderr.strip()[-300:]}")
    (record,) = json.loads(result.stdout[result.stdout.index("[") :])
    os.environ[variable] = record["get_uri"]


def _print_list(states: list[dict[str, object]]) -> None:
    table = Table(box=None)
    for column in ("job", "status", "ended with", "seconds", "started"):
        table.add_column(column, no_wrap=True, overflow="fold")
    for state in states:
        ending = state.get("reason") or (f"signal {state['signal']}" if state.get("signal") else state.get("exit_code"))
        started = state.get("started_at")
        table.add_row(
            str(state["job_id"]),
            str(state["status"]),
            "" if ending is None else str(ending),
            f"{seconds:.0f}" if isinstance(seconds := state.get("seconds"), int | float) else "",
            time.strftime("%m-%d %H:%M:%S", time.localtime(started)) if isinstance(started, int | float) else "",
        )
    Console().print(table)
