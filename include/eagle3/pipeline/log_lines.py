"""Bytes of a job's log → text segments, one for each line or bar update. Control side."""

import re

MAX_SEGMENT_BYTES = 64 * 1024

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTAINER_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)\s(?:(?:stdout|stderr) [FP] )?")
_PROCESS = re.compile(r"^(?:\([A-Za-z][\w.-]*(?: rank=\d+)? pid=\d+(?:, ip=[^)]*)?\)\s*)+")
_RECORD = re.compile(r"^\s*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]{5} [\d:]{8} \[?[\w./-]+:\d+\] |^\[rank\d+\]:\s?")


class LineSplitter:
    """Cuts a stream of bytes at CR and LF, both of which end a segment; blank segments are dropped.

    Progress bars use a bare CR, vLLM's multi-line records CR LF. The segments never depend on how the stream was
    chunked: only whole segments are decoded. Of a segment longer than MAX_SEGMENT_BYTES the tail is kept.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[str]:
        """The segments that `chunk` completes, cleaned by `clean`."""
        return [segment for piece in self.complete(chunk) if (segment := cleaned(piece))]

    def complete(self, chunk: bytes) -> list[bytes]:
        """The same as they stand in the log, blank ones too."""
        *pieces, rest = chunk.replace(b"\r", b"\n").split(b"\n")
        if pieces:
            pieces[0] = bytes(self._pending) + pieces[0]
            self._pending.clear()
        self._pending += rest
        if len(self._pending) > 2 * MAX_SEGMENT_BYTES:
            del self._pending[:-MAX_SEGMENT_BYTES]
        return pieces

    def finish(self) -> list[str]:
        """What stands after the last line end, once nothing more will come."""
        segment = cleaned(bytes(self._pending))
        self._pending.clear()
        return [segment] if segment else []

    @property
    def pending_bytes(self) -> int:
        """Bytes held back: a new splitter, fed from this many bytes before the stream's position, goes on the same."""
        return len(self._pending)


def split_log(content: bytes) -> list[str]:
    """All segments of a complete log."""
    splitter = LineSplitter()
    return splitter.feed(content) + splitter.finish()


def cleaned(piece: bytes) -> str:
    """A line of the log as a segment, empty when it is blank; of a very long one the tail."""
    return clean(piece[-MAX_SEGMENT_BYTES:].decode("utf-8", errors="replace"))


def clean(segment: str) -> str:
    """A segment without colours, container time stamps, trailing blanks and `(Worker_TP0 pid=1700) ` prefixes."""
    segment = _CONTAINER_TIME.sub("", _ANSI.sub("", segment)).rstrip()
    return _PROCESS.sub("", segment) if segment.lstrip().startswith("(") else segment


def message(segment: str) -> str:
    """A segment without the header of its log record (`ERROR 10-22 09:33:48 [core.py:708] `, `[rank0]: `)."""
    return _RECORD.sub("", segment)
