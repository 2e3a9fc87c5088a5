"""Sets up both environments: `python3 bootstrap.py [control|host ...]`. Stdlib only; runs before anything is installed.

An environment is complete when its marker holds the hash of its lock; a failed one is removed again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from typing import NoReturn

OLDEST_PYTHON = (3, 11)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# environment: folder, locks, free bytes needed
ENVIRONMENTS = {
    "control": (".venv", ["requirements.txt", "requirements/dev.txt"], 1.5e9),
    "host": (".venv-host", ["requirements/host-cpu.txt"], 6e9),
}


def fail(sentence: str) -> NoReturn:
    sys.exit(f"setup: {sentence}")


def check_python() -> None:
    if sys.version_info[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        fail(f"Python {sys.version.split()[0]} is too old; name a Python from {oldest} on: `make PYTHON=... setup`.")


def check_disk(folder: str, needed_bytes: float) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        fail(f"{folder} has {free_bytes / 1e9:.1f} GB free, the set-up needs {needed_bytes / 1e9:.1f} GB.")


def lock_hash(paths: "list[str]") -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_complete(venv: str, expected: str) -> bool:
    try:
        with open(os.path.join(venv, ".complete")) as file:
            return file.read() == expected
    except OSError:
        return False


def pip_install(python: str, *arguments: str) -> "str | None":
    """Returns pip's output when it failed, None when it worked. pip installs nothing until it has everything."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.stdout if result.returncode else None


def decisive_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("ERROR:")]
    lines = [line for line in lines if "No matching distribution" in line] or lines or output.splitlines()[-1:]
    return lines[0] if lines else "pip gave no reason"


def install(name: str) -> None:
    folder, locks, needed_bytes = ENVIRONMENTS[name]
    venv = os.path.join(ROOT, folder)
    locks = [os.path.join(ROOT, lock) for lock in locks]
    expected = lock_hash(locks)
    if is_complete(venv, expected):
        return
    shutil.rmtree(venv, ignore_errors=True)
    check_disk(ROOT, needed_bytes)
    print(f"setup: installing the {name} environment into {folder}", flush=True)
    arguments = [argument for lock in locks for argument in ("-r", lock)]
    try:
        if subprocess.run([sys.executable, "-m", "venv", venv]).returncode:
            raise RuntimeError(f"{sys.executable} cannot make a virtual environment; install its venv module")
        python = os.path.join(venv, "bin", "python")
        failure = pip_install(python, *arguments)
        if failure and "torch" in decisive_line(failure):  # the CPU build is not on every index
            failure = pip_install(python, "--extra-index-url", TORCH_CPU_INDEX, *arguments)
        if not failure and name == "control":
            failure = pip_install(python, "--editable", ROOT)
        if failure:
            raise RuntimeError(f"a package cannot be installed: {decisive_line(failure)}")
        with open(os.path.join(venv, ".complete"), "w") as file:
            file.write(expected)
    except (RuntimeError, KeyboardInterrupt) as error:
        shutil.rmtree(venv, ignore_errors=True)
        fail(f"the {name} environment was not installed, nothing of it is left: {error or 'interrupted'}")


def main() -> None:
    check_python()
    for name in sys.argv[1:] or ENVIRONMENTS:
        install(name)


if __name__ == "__main__":
    main()
