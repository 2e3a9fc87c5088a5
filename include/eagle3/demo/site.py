"""Where the one-machine set-up keeps its things, and the environment that its Airflow runs in."""

import base64
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
AIRFLOW_USER = "admin"


@dataclass(frozen=True)
class Site:
    """`.demo/` of a checkout (EAGLE3_DEMO_DIR names another place): Airflow's home, the host's work folder, keys."""

    root: Path

    @classmethod
    def of_checkout(cls) -> "Site":
        return cls(Path(os.environ.get("EAGLE3_DEMO_DIR", ROOT / ".demo")).absolute())

    @property
    def airflow_home(self) -> Path:
        return self.root / "airflow"

    @property
    def work_dir(self) -> Path:
        """The work directory of the GPU host."""
        return self.root / "host"

    @property
    def ssh_dir(self) -> Path:
        return self.root / "ssh"

    @property
    def log_dir(self) -> Path:
        return self.root / "logs"

    @property
    def keeper_path(self) -> Path:
        """Who keeps the services running: pid and start time, written by the keeper itself."""
        return self.root / "keeper.json"

    @property
    def host_python(self) -> Path:
        return Path(os.environ.get("EAGLE3_HOST_PYTHON", ROOT / ".venv-host" / "bin" / "python"))

    @property
    def airflow_port(self) -> int:
        return int(os.environ.get("EAGLE3_AIRFLOW_PORT", "8080"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"

    @property
    def password(self) -> str:
        return self._secrets()["password"]

    def _secrets(self) -> dict[str, Any]:
        """Made once for each site; readable by its owner alone."""
        path = self.root / "secrets.json"
        if not path.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            values = {
                "password": secrets.token_urlsafe(12),
                "jwt": secrets.token_urlsafe(64),
                "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "log_ports": [free_port(), free_port()],
            }
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                json.dump(values, file)
        return json.loads(path.read_text())

    def airflow_environment(self) -> dict[str, str]:
        values = self._secrets()
        passwords = self.airflow_home / "passwords.json"
        if not passwords.exists():
            self.airflow_home.mkdir(parents=True, exist_ok=True)
            with open(os.open(passwords, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                json.dump({AIRFLOW_USER: values["password"]}, file)
        settings = {
            "CORE__DAGS_FOLDER": ROOT / "dags",
            "CORE__PLUGINS_FOLDER": ROOT / "plugins",
            "CORE__LOAD_EXAMPLES": False,
            "CORE__PARALLELISM": 8,
            "CORE__FERNET_KEY": values["fernet"],
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{AIRFLOW_USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.airflow_home}/airflow.db",
            "API__HOST": "127.0.0.1",
            "API__PORT": self.airflow_port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API_AUTH__JWT_SECRET": values["jwt"],
            # a task whose worker or scheduler died is tried again after about a minute
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60,
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 30,
            "LOGGING__WORKER_LOG_SERVER_PORT": values["log_ports"][0],
            "LOGGING__TRIGGER_LOG_SERVER_PORT": values["log_ports"][1],
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {
            **inherited,
            "AIRFLOW_HOME": str(self.airflow_home),
            "PYTHONPATH": str(ROOT / "include"),
            **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        }

    def host_environment(self) -> dict[str, str]:
        """What a login on the host would have: nothing of Airflow's."""
        kept = ("HOME", "PATH", "LANG", "USER", "LOGNAME", "TMPDIR", "TZ")
        return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": str(ROOT / "include")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_port_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
