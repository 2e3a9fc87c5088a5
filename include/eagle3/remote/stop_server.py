"""Step `stop_server`, on the GPU host: the vLLM server is gone, its port closed, the GPUs' memory free.

By hand: `python -m eagle3.remote stop_server --run-dir DIR`.
"""

from typing import Any

from eagle3.remote.server_shutdown import stop
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: `{was_running, processes_ended, requests_abandoned, seconds}`."""
    return stop(step)
