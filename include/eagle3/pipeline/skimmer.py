"""Reads gigabytes of a log at the speed of its few different lines. Control side."""

from collections.abc import Callable
from enum import IntEnum

from eagle3.pipeline.log_lines import LineSplitter, cleaned

MAX_SHAPE_BYTES = 1000
MAX_SHAPES = 20_000
TAKEN_OF_RUN = 32

_SAME_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


class Told(IntEnum):
    """What a segment told. NOTHING and COUNTS hold for every segment that differs from it by digits alone."""

    NOTHING = 0
    COUNTS = 1
    MORE = 2


class Skimmer:
    """Reads a stream to `take`, but for lines like one that told nothing, and most of a run of lines that only count.

    Lines are alike when they differ by digits alone. The first and the last of a run are taken, and one in
    TAKEN_OF_RUN, whatever the chunks.
    """

    def __init__(self, take: Callable[[str], Told]) -> None:
        self._take = take
        self._splitter = LineSplitter()
        self._dull: set[bytes] = set()
        self._run_shape = b""
        self._run_length = 0
        self._held: bytes | None = None

    def feed(self, chunk: bytes) -> None:
        pieces = self._splitter.complete(chunk)
        shapes = b"\n".join(pieces).translate(_SAME_DIGITS).split(b"\n")
        for piece, shape in zip(pieces, shapes, strict=False):  # no piece at all has one empty shape
            if shape in self._dull:
                continue
            if shape == self._run_shape:
                self._run_length += 1
                if self._run_length % TAKEN_OF_RUN:
                    self._held = piece
                    continue
                self._held = None
            self._read(piece, shape)

    def finish(self) -> None:
        """Once nothing more will come."""
        self._end_run()
        for segment in self._splitter.finish():
            self._take(segment)

    def _read(self, piece: bytes, shape: bytes) -> None:
        if shape != self._run_shape:
            self._end_run()
        segment = cleaned(piece)
        told = self._take(segment) if segment else Told.NOTHING
        if told is Told.COUNTS:
            self._run_shape = shape
        elif told is Told.NOTHING and len(shape) <= MAX_SHAPE_BYTES:
            if len(self._dull) >= MAX_SHAPES:
                self._dull.clear()
            self._dull.add(shape)

    def _end_run(self) -> None:
        if self._held is not None:
            self._take(cleaned(self._held))
        self._run_shape, self._run_length, self._held = b"", 0, None
