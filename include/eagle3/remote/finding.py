"""What a preflight check found, on the GPU host. A check that fails raises ConfigError instead."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    verdict: Verdict
    message: str


def ok(message: str) -> Finding:
    return Finding(Verdict.OK, message)


def warning(message: str) -> Finding:
    return Finding(Verdict.WARNING, message)
