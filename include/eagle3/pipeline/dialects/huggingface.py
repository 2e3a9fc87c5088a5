"""The bars of transformers (4.45-5.24) and huggingface_hub. Control side."""

from eagle3.pipeline.dialects.bar import Bar, Event, read_bar

BARS = (
    Bar(r"Loading checkpoint shards", "shards", "loading_weights"),
    Bar(r"Loading weights", "parameters", "loading_weights"),
    Bar(r"(?:Saving checkpoint|Writing model) shards", "shards", "saving"),
    Bar(r"Fetching \d+ files", "files", "downloading"),
)


def read(segment: str) -> list[Event]:
    return read_bar(segment, BARS)
