"""Step `ensure_server`, on the GPU host: the plain vLLM server runs and answers.

By hand: `python -m eagle3.remote ensure_server --run-dir DIR`.
"""

from typing import Any

from eagle3.remote.server import ensure
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: `{action: kept | started | replaced, url, model, checkpoint: null, seconds}`."""
    return ensure(step, checkpoint=None)
