"""Keeps the services of the one-machine set-up running, and ends them all when it is told to stop.

`python -m eagle3.demo.keeper`, started detached by `eagle3 up`. A service that dies is started again; what it said is
in `.demo/logs/<service>.log`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from eagle3.demo.site import Site

STOP_SECONDS = 15.0
RESTART_SECONDS = 2.0


def services(site: Site) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name → command line and environment."""
    airflow = [sys.executable, "-m", "airflow"]
    environment = site.airflow_environment()
    return {
        "ssh-server": ([sys.executable, "-m", "eagle3.demo.ssh_server", str(site.ssh_dir)], site.host_environment()),
        "api-server": ([*airflow, "api-server"], environment),
        "scheduler": ([*airflow, "scheduler"], environment),
        "dag-processor": ([*airflow, "dag-processor"], environment),
        "triggerer": ([*airflow, "triggerer"], environment),
    }


def start_ticks(pid: int) -> str | None:
    """When the process started, in ticks since boot; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def keeper_pid(site: Site) -> int | None:
    """The pid of the running keeper, None when none runs."""
    try:
        keeper = json.loads(site.keeper_path.read_text())
    except (OSError, ValueError):
        return None
    return keeper["pid"] if start_ticks(keeper["pid"]) == keeper["start_ticks"] else None


def keep(site: Site) -> None:
    site.log_dir.mkdir(parents=True, exist_ok=True)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for whoever started us, and reaches us as TERM
    site.keeper_path.write_text(json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}))
    wanted = services(site)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while not stopping:
            for name, (argv, environment) in wanted.items():
                if name in running and running[name].poll() is None:
                    continue
                if name in running:
                    print(f"{name} ended with {running[name].returncode}, starting it again", flush=True)
                with open(site.log_dir / f"{name}.log", "ab") as log:
                    running[name] = subprocess.Popen(
                        argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                    )
            time.sleep(RESTART_SECONDS)
    finally:
        _end(list(running.values()))
        site.keeper_path.unlink(missing_ok=True)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """TERM to each whole session, then KILL: ended alone, Airflow's components leave their workers behind."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        for process in processes:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + seconds
        while any(_group_is_alive(process) for process in processes) and time.monotonic() < deadline:
            time.sleep(0.2)


def _group_is_alive(process: "subprocess.Popen[bytes]") -> bool:
    process.poll()  # reaps the leader, which otherwise stays in its group as a zombie
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    keep(Site.of_checkout())
