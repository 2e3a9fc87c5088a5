"""The bars of transformers (4.45-5.24) and huggingface_hub, and transformers' Trainer. Control side."""

import re

from eagle3.pipeline.dialects.bar import UNNAMED, Bar, Event, read_bar, read_phase

BARS = (
    Bar(r"Loading checkpoint shards", "shards", "loading_weights"),
    Bar(r"Loading weights", "parameters", "loading_weights"),
    Bar(r"(?:Saving checkpoint|Writing model) shards", "shards", "saving"),
    Bar(r"Fetching \d+ files", "files", "downloading"),
    Bar(UNNAMED, "steps", None),  # the Trainer's, and anybody's
)

PHASES = (
    ("training", re.compile(r"^\{'(?:train_|eval_)?loss': |\*\*\*\*\* Running (?:training|Evaluation) \*\*\*\*\*")),
    ("saving", re.compile(r"Saving model checkpoint to")),
    ("finished", re.compile(r"Training completed\. Do not forget")),
)


def read(segment: str) -> list[Event]:
    return read_bar(segment, BARS) + read_phase(segment, PHASES)
