"""docker-compose.yaml as docker-compose itself reads it; where no docker-compose is installed, as YAML."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO_ROOT = Path(__file__).resolve().parents[1]
COMPOSE_FILE = REPO_ROOT / "docker-compose.yaml"
SECRETS = {
    "POSTGRES_PASSWORD": "database-words",
    "AIRFLOW_FERNET_KEY": "fernet-words",
    "AIRFLOW_JWT_SECRET": "jwt-words",
    "AIRFLOW_API_SECRET_KEY": "api-words",
    "AIRFLOW_ADMIN_USER": "somebody",
    "AIRFLOW_ADMIN_PASSWORD": "admin-words",
}
LONG_RUNNING = {"airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
needs_docker_compose = pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")


def docker_compose_config(env_file: Path, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env_file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return subprocess.run(
        ["docker-compose", "--file", COMPOSE_FILE, "--env-file", env_file, "config"],
        env={"PATH": os.environ["PATH"], "HOME": str(env_file.parent)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not shutil.which("docker-compose"):
        return dict(yaml.safe_load(COMPOSE_FILE.read_text())["services"])
    config = docker_compose_config(tmp_path_factory.mktemp("compose") / "env", SECRETS)
    assert config.returncode == 0, config.stderr
    return dict(yaml.safe_load(config.stdout)["services"])


def test_services(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "airflow-init"} | LONG_RUNNING
    assert services["postgres"]["image"] == "postgres:16"


@pytest.mark.parametrize("name", sorted(LONG_RUNNING | {"airflow-init"}))
def test_every_airflow_service_can_import_the_package(services: dict[str, Any], name: str) -> None:
    assert services[name]["environment"]["PYTHONPATH"] == "/opt/airflow/include"
    mounted = {volume.split(":")[1] for volume in services[name]["volumes"]}
    assert mounted == {f"/opt/airflow/{folder}" for folder in ("dags", "include", "plugins", "logs")}
    # the same settings everywhere: a signing key that differs shows only as a task that cannot report back
    assert services[name]["environment"].items() <= services["airflow-init"]["environment"].items()


@pytest.mark.parametrize("name", sorted(LONG_RUNNING | {"postgres"}))
def test_every_lasting_service_has_a_health_check_and_comes_back(services: dict[str, Any], name: str) -> None:
    assert services[name]["healthcheck"]["test"]
    assert services[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(LONG_RUNNING))
def test_services_wait_for_the_migrated_database(services: dict[str, Any], name: str) -> None:
    assert services[name]["depends_on"]["airflow-init"]["condition"] == "service_completed_successfully"
    assert services[name]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_init_makes_the_pool_that_counts_deferred_jobs(services: dict[str, Any]) -> None:
    script = services["airflow-init"]["command"][-1]
    assert re.search(r"^airflow pools set eagle3_gpu_host .* --include-deferred$", script, re.MULTILINE)
    assert script.index("airflow db migrate") < script.index("airflow pools set")


def test_every_secret_is_a_required_variable_that_names_itself() -> None:
    raw = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    required = set()
    for service in raw.values():
        for name, value in service.get("environment", {}).items():
            variables = re.findall(r"\$\{([A-Z_]+):\?\1 is not set", value)
            required |= set(variables)
            if re.search("PASSWORD|SECRET|KEY|TOKEN|CONN", name):
                assert variables, f"{name} is not taken from .env"
            if re.fullmatch(r".*(PASSWORD|SECRET|KEY|TOKEN)", name):
                assert re.fullmatch(r"\$\{[^}]*\}", value), f"{name} has more in it than one variable"
    assert required == set(SECRETS)


def test_the_example_lists_every_required_variable_and_no_value() -> None:
    lines = (REPO_ROOT / ".env.example").read_text().splitlines()
    assigned = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert assigned == dict.fromkeys(SECRETS, "")


@needs_docker_compose
@pytest.mark.parametrize("name", SECRETS)
def test_an_empty_value_stops_docker_compose_with_its_name(tmp_path: Path, name: str) -> None:
    config = docker_compose_config(tmp_path / "env", {**SECRETS, name: ""})
    assert config.returncode != 0
    assert f"{name} is not set" in config.stderr


@needs_docker_compose
def test_without_an_env_file_docker_compose_names_what_is_missing(tmp_path: Path) -> None:
    config = docker_compose_config(tmp_path / "env", {})
    assert config.returncode != 0
    assert re.search("(" + "|".join(SECRETS) + ") is not set", config.stderr)


def test_the_image_is_built_from_files_that_the_build_context_lets_through() -> None:
    sent = {line.removeprefix("!") for line in (REPO_ROOT / ".dockerignore").read_text().splitlines()}
    copied = re.findall(r"^COPY (\S+) ", (REPO_ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert copied
    for source in copied:
        assert (REPO_ROOT / source).is_file()
        assert source in sent
