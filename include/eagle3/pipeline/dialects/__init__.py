"""Dialects: what the programs of the pipeline print → events like those of contract/event.py. Control side.

A dialect is a module with `read(segment) -> list[Event]`: pure, one cleaned segment of log_lines at a time. To add one:
write the module, add its row to DIALECTS, put cases into tests/log_corpus/.
"""

from collections.abc import Callable

from eagle3.pipeline.dialects import huggingface, sglang, specforge, speculators, vllm
from eagle3.pipeline.dialects.bar import Event

DIALECTS: dict[str, Callable[[str], list[Event]]] = {
    "vllm": vllm.read,
    "sglang": sglang.read,
    "speculators": speculators.read,
    "specforge": specforge.read,
    "huggingface": huggingface.read,  # last: it takes unnamed bars
}


def read(segment: str) -> list[Event]:
    """The events of one segment, in the words of the first dialect that understands it; [] for other text.

    Each has a `dialect`, and no `t`: the text's own clock has neither year nor time zone.
    """
    for name, dialect in DIALECTS.items():
        if events := dialect(segment):
            return [{"v": 1, "dialect": name, **event} for event in events]
    return []
