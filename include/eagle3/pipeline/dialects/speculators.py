"""What the scripts of speculators (0.7-0.9) print: offline data generation and training. Control side.

Their RichHandler wraps records at 80 columns. Training shows no bar in a file: its records tell where it is.
"""

import re

from eagle3.pipeline.dialects.bar import UNNAMED, Bar, Event, read_bar, read_phase

BARS = (Bar(UNNAMED, "samples", "generating", behind=r"^, ok=\d+, err=\d+"),)

PHASES = (
    ("starting", re.compile(r"EAGLE Offline Data Generation")),
    ("generating", re.compile(r"\bProcessing \d+ samples")),
    ("saving", re.compile(r"Waiting for remaining file saves|Saved \d+ new data points")),
    ("finished", re.compile(r"Data generation complete!")),
    ("training", re.compile(r"Training epoch \d+|\bepoch \d+/\d+")),
)


def read(segment: str) -> list[Event]:
    return read_bar(segment, BARS) + read_phase(segment, PHASES)
