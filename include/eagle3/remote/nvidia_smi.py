"""What `nvidia-smi` says, as rows of cells. On the GPU host. Stdlib only, Python 3.9 or later."""

import csv
import shutil
import subprocess

TIMEOUT_SECONDS = 60.0  # on a host with persistence mode off, each call starts the driver


def is_present() -> bool:
    return shutil.which("nvidia-smi") is not None


def query(what: str, fields: str) -> list[list[str]]:
    """`--query-WHAT=FIELDS`, without units. Raises OSError or subprocess.SubprocessError."""
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS).stdout
    return [[cell.strip() for cell in row] for row in csv.reader(output.splitlines()) if row]
