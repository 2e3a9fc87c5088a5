"""`eagle3 up` and `eagle3 down`: a GPU host on loopback and an Airflow that reaches it, on one machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import httpx

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_dir import WorkDir
from eagle3.contract.run_spec import RunSpec
from eagle3.demo.keeper import keeper_pid
from eagle3.demo.site import AIRFLOW_USER, Site, is_port_busy
from eagle3.demo.ssh_server import make_key, public_line
from eagle3.pipeline.names import PIPELINE_DAG_ID, SSH_CONN_ID
from eagle3.pipeline.presets import resolve

NEEDED_DISK_BYTES = 2e9
START_SECONDS = 180.0
STOP_SECONDS = 60.0


def is_up(site: Site) -> bool:
    return keeper_pid(site) is not None


def up(site: Site, preset: str) -> None:
    """Start everything that is not running yet and wait until the pipeline can be triggered. Raises ConfigError."""
    if is_up(site):
        return
    spec = resolve(preset, {"work_dir": str(site.work_dir), "host_python": str(site.host_python)})
    _check(site, spec)
    _make_target(site, spec.model_path.removeprefix("models/"))
    print("starting Airflow and the SSH host", flush=True)
    _airflow(site, "db", "migrate")
    site.log_dir.mkdir(parents=True, exist_ok=True)
    (site.ssh_dir / "port").unlink(missing_ok=True)
    with open(site.log_dir / "keeper.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "eagle3.demo.keeper"],
            env={**os.environ, "EAGLE3_DEMO_DIR": str(site.root)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _wait_until("the SSH host listens", lambda: (site.ssh_dir / "port").exists(), site)
    _import_connection(site)
    _wait_until("Airflow offers the pipeline", lambda: _pipeline_is_offered(site), site)


def down(site: Site) -> None:
    """Stop everything that `up` and its runs started: Airflow, the SSH host, the jobs and the vLLM server."""
    pid = keeper_pid(site)
    if pid:
        os.kill(pid, signal.SIGTERM)
        _wait_until("the services stop", lambda: not is_up(site), site, STOP_SECONDS)
    for job_dir in [*(site.work_dir / "jobs").glob("*/"), WorkDir(site.work_dir).server_dir]:
        if (job_dir / "job.json").exists() and not (job_dir / "exit.json").exists():
            command = [str(site.host_python), "-m", "eagle3.remote.supervisor", "kill", str(job_dir)]
            subprocess.run(command, env=site.host_environment(), stdout=subprocess.DEVNULL, check=False)


def _check(site: Site, spec: RunSpec) -> None:
    """One clear sentence for what would fail later, before anything is started."""
    if not site.host_python.exists():
        raise ConfigError(f"there is no host environment at {site.host_python}: run `make setup`")
    site.root.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(site.root).free
    if free_bytes < NEEDED_DISK_BYTES:
        raise ConfigError(
            f"{site.root} has {free_bytes / 1e9:.1f} GB free, {NEEDED_DISK_BYTES / 1e9:.0f} GB are needed"
        )
    if is_port_busy(site.airflow_port):
        raise ConfigError(
            f"port {site.airflow_port} is in use by another program; choose one with EAGLE3_AIRFLOW_PORT=8081"
        )
    if is_port_busy(spec.server_port):
        raise ConfigError(f"port {spec.server_port}, the vLLM server's, is in use by another program")


def _make_target(site: Site, name: str) -> None:
    argv = [str(site.host_python), "-m", "eagle3.demo.targets", name, "--work-dir", str(site.work_dir)]
    if subprocess.run(argv, env=site.host_environment(), check=False).returncode:
        raise ConfigError(f"the target model {name} could not be made; the reason is above")


def _airflow(site: Site, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env=site.airflow_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ConfigError(f"`airflow {' '.join(arguments)}` failed:\n{result.stdout[-3000:]}")


def _import_connection(site: Site) -> None:
    """The host as an Airflow connection: the key by path, its host key pinned."""
    extra = {
        "key_file": str(site.ssh_dir / "client_key"),
        "host_key": public_line(make_key(site.ssh_dir / "host_key")),
        "work_dir": str(site.work_dir),
        "host_python": str(site.host_python),
    }
    connection = {
        "conn_type": "ssh",
        "description": "The demo's GPU host on this machine",
        "host": "127.0.0.1",
        "port": int((site.ssh_dir / "port").read_text()),
        "login": os.environ.get("USER", "eagle3"),
        "extra": extra,
    }
    path = site.root / "connections.json"
    path.write_text(json.dumps({SSH_CONN_ID: connection}, indent=1))
    _airflow(site, "connections", "import", str(path), "--overwrite")


def access_token(site: Site) -> str:
    """A bearer token for Airflow's REST API."""
    answer = httpx.post(f"{site.url}/auth/token", json={"username": AIRFLOW_USER, "password": site.password})
    answer.raise_for_status()
    return answer.json()["access_token"]


def _pipeline_is_offered(site: Site) -> bool:
    try:
        headers = {"Authorization": f"Bearer {access_token(site)}"}
        health = httpx.get(f"{site.url}/api/v2/monitor/health", timeout=10).json()
        ready = all(health[name]["status"] == "healthy" for name in ("scheduler", "triggerer", "dag_processor"))
        return ready and httpx.get(f"{site.url}/api/v2/dags/{PIPELINE_DAG_ID}", headers=headers).status_code == 200
    except (httpx.HTTPError, KeyError):
        return False  # not up yet


def _wait_until(what: str, condition: Callable[[], bool], site: Site, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ConfigError(f"waited {seconds:.0f} s, but not yet: {what}. See the logs in {site.log_dir}")
        time.sleep(0.5)
