"""What SpecForge's scripts print: preparing hidden states, and training. Control side."""

import re

from eagle3.pipeline.dialects.bar import Bar, Event, read_bar, read_phase

BARS = (
    Bar(r"Generating Hidden States", "batches", "generating"),
    Bar(r"Finalizing Writes", "files", "saving"),
    Bar(r"Training Epoch \d+", "steps", "training"),
)

PHASES = (
    ("generating", re.compile(r"Dataset prepared with \d+ samples")),
    ("saving", re.compile(r"Generation loop finished\.|Waiting for all async I/O")),
    ("finished", re.compile(r"All hidden states generated or job finished")),
)


def read(segment: str) -> list[Event]:
    return read_bar(segment, BARS) + read_phase(segment, PHASES)
