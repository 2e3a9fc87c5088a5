"""Step `evaluate_draft`, on the GPU host: what the draft head is worth in the live server, beside the baseline.

By hand: `python -m eagle3.remote evaluate_draft --run-dir DIR`.
"""

from typing import Any

from eagle3.contract.run_dir import read_json
from eagle3.remote.evaluation import compare_outputs, measure, require_speculation
from eagle3.remote.serve_draft import best_checkpoint
from eagle3.remote.server_watch import require
from eagle3.remote.step import Step


def run(step: Step) -> dict[str, Any]:
    """Result: the baseline's fields, and `{checkpoint, drafts, draft_tokens, accepted, acceptance_length,
    acceptance_per_position, speedup, outputs_compared, outputs_identical, outputs_different, first_divergence}`;
    `simulated_acceptance_length` is training's own estimate (None for a head from elsewhere).
    """
    baseline = step.result_of("measure_baseline")
    checkpoint = best_checkpoint(step)
    require(step, checkpoint, remedy="serve_draft")
    measurement = measure(step)
    speculation = require_speculation(measurement, step.spec.server_url)
    if not speculation.accepted:
        step.events.warning("the target accepted no token of the draft: look at the taps and the head's config")
    result = {
        **measurement.as_result(),
        "checkpoint": str(checkpoint),
        "drafts": speculation.drafts,
        "draft_tokens": speculation.draft_tokens,
        "accepted": speculation.accepted,
        "acceptance_length": round(speculation.acceptance_length, 4),
        "acceptance_per_position": [round(share, 4) for share in speculation.acceptance_per_position],
        "speedup": round(measurement.tokens_per_second / baseline["tokens_per_second"], 4),
        "simulated_acceptance_length": read_json(step.run_dir.best_checkpoint_path).get("simulated_acceptance_length"),
        **compare_outputs(read_json(step.run_dir.baseline_outputs_path), measurement.outputs),
    }
    for name in ("acceptance_length", "tokens_per_second", "speedup"):
        step.events.metric(name, result[name])
    return result
