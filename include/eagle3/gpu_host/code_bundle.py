"""The code that travels with a run: `contract/` and `remote/` as one tar, named by the hash of what is in it."""

import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

from eagle3.gpu_host.shell import Command, ParamikoShell

_PACKAGE = Path(__file__).resolve().parents[1]

# Unpacks aside and renames: a folder under its final name is complete. Runs with any Python 3.
_UNPACK = dedent("""
    import os, shutil, sys, tarfile, tempfile
    target = sys.argv[1]
    if not os.path.isdir(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        aside = tempfile.mkdtemp(prefix=".code-", dir=os.path.dirname(target))
        tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz").extractall(aside)
        try:
            os.rename(aside, target)
        except OSError:
            shutil.rmtree(aside)
            if not os.path.isdir(target):
                raise
""").strip()


@dataclass(frozen=True)
class CodeBundle:
    sha: str
    tar: bytes

    def is_there_command(self, code_dir: Path) -> Command:
        return Command(["test", "-d", str(code_dir)])

    def unpack_command(self, code_dir: Path, host_python: str) -> Command:
        return Command([host_python, "-c", _UNPACK, str(code_dir)], stdin=self.tar)


def bring_code(shell: ParamikoShell, code_dir: Path, host_python: str) -> None:
    """Unpack this installation's bundle into `code_dir` on the host, unless it is there. Raises ConfigError."""
    if shell.run(code_bundle().is_there_command(code_dir)).exit_status != 0:
        command = code_bundle().unpack_command(code_dir, host_python)
        shell.run(command).require_success("unpacking the code", shell.host)


@cache
def code_bundle() -> CodeBundle:
    """The bundle of this installation; equal sources give equal bytes, whatever their times and owners."""
    files = [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "contract").rglob("*.py"))]
    files += sorted((_PACKAGE / "remote").rglob("*.py"))
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file in files:
            content = file.read_bytes()
            name = f"eagle3/{file.relative_to(_PACKAGE)}"
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return CodeBundle(digest.hexdigest()[:16], buffer.getvalue())
