"""Step `measure_baseline`, on the GPU host: the plain server's speed on the held-out prompts, and its greedy answers.

By hand: `python -m eagle3.remote measure_baseline --run-dir DIR`.
"""

from typing import Any

from eagle3.contract.run_dir import write_json
from eagle3.remote.evaluation import measure
from eagle3.remote.server_watch import require
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: `{prompts, generated_tokens, seconds, tokens_per_second}`."""
    require(step, checkpoint=None, remedy="start_server")
    measurement = measure(step)
    write_json(step.run_dir.baseline_outputs_path, measurement.outputs)
    return measurement.as_result()
