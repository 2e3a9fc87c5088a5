"""From an Airflow task's context to the run's spec, its folder and its job."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_spec import RunSpec
from eagle3.gpu_host.code_bundle import code_bundle
from eagle3.gpu_host.remote_job import RemoteJob
from eagle3.orchestrate.hosts import host_settings
from eagle3.pipeline.presets import resolve


@dataclass(frozen=True)
class RunContext:
    """The run that a task belongs to."""

    ssh_conn_id: str
    spec: RunSpec
    folder: str  # of the run on the host
    key: str  # of this DAG run: the jobs' ids begin with it
    clear_number: int

    def job(self, step: str, task_id: str, map_index: int = -1) -> RemoteJob:
        """The job that a task launches: its id is a function of dag, run, task and map index alone."""
        suffix = "" if map_index < 0 else f".{map_index}"
        return RemoteJob(
            ssh_conn_id=self.ssh_conn_id,
            work_dir=self.spec.work_dir,
            host_python=self.spec.host_python,
            code_sha=code_bundle().sha,
            run_id=self.folder,
            job_id=f"{self.key}.{task_id}{suffix}",
            step=step,
        )


def run_context(context: Mapping[str, Any], folder_per_run: bool = True) -> RunContext:
    """Resolve the form's values against preset and connection.

    `folder_per_run` False gives all runs of the DAG one folder on the host, so that each continues the last.
    Raises ConfigError for an unknown key, a wrong value, or a connection without what the spec lacks.
    """
    dag_run = context["dag_run"]
    params = dict(context["params"])
    unknown = sorted(set(dag_run.conf or {}) - {"ssh_conn_id", *RunSpec.model_fields})
    if unknown:
        allowed = ", ".join(["ssh_conn_id", *RunSpec.model_fields])
        raise ConfigError(f"unknown in this run's configuration: {', '.join(unknown)}. Allowed: {allowed}")
    ssh_conn_id = params.pop("ssh_conn_id")
    preset = params.pop("preset")
    for name, value in host_settings(ssh_conn_id).items():
        if params.get(name) is None:
            params[name] = value
        if params[name] is None:
            raise ConfigError(
                f'{name} is not set: fill it in the form, or put {{"{name}": "..."}} into the extra of connection '
                f"{ssh_conn_id!r}"
            )
    spec = resolve(preset, {name: value for name, value in params.items() if value is not None})
    key = _safe_name(f"{dag_run.dag_id}.{dag_run.run_id}")
    folder = key if folder_per_run else _safe_name(f"{dag_run.dag_id}.{preset}")
    return RunContext(ssh_conn_id, spec, folder, key, getattr(dag_run, "clear_number", None) or 0)


def _safe_name(text: str) -> str:
    """A name that is safe as a path and a word of a command; changed ones stay distinct by a hash."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:150]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
