"""Step `start_server`, on the GPU host: back to the plain vLLM server, whatever runs now.

By hand: `python -m eagle3.remote start_server --run-dir DIR`.
"""

from typing import Any

from eagle3.remote.server import ensure
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: `{action: kept | started | replaced, url, model, checkpoint: null, seconds}`."""
    return ensure(step, checkpoint=None)
