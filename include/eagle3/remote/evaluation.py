"""Greedy answers of the live server to the held-out prompts, timed, on the GPU host: the same for both servers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from eagle3.contract.errors import ConfigError, JobFailed
from eagle3.remote.dataset import Prompt, read_prompts
from eagle3.remote.server_watch import while_serving
from eagle3.remote.step import Step
from eagle3.remote.vllm_client import RequestFailed, Sampling, VllmClient, for_each
from eagle3.remote.vllm_metrics import Metrics, Speculation

WARM_UP_TOKENS = 16
SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Measurement:
    """`outputs` are the generated token ids by prompt id; `seconds` is wall time from first request to last answer."""

    outputs: dict[str, list[int]]
    seconds: float
    speculation: Speculation | None

    @property
    def generated_tokens(self) -> int:
        return sum(len(token_ids) for token_ids in self.outputs.values())

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / self.seconds

    def as_result(self) -> dict[str, Any]:
        return {
            "prompts": len(self.outputs),
            "generated_tokens": self.generated_tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


def measure(step: Step) -> Measurement:
    """Raises JobFailed when a prompt gets no answer: figures over different prompts do not compare."""
    training, held_out = read_prompts(step)
    try:
        return asyncio.run(while_serving(step, _measure(step, training, held_out)))
    except RequestFailed as error:
        raise JobFailed("request_failed", f"a held-out prompt got no answer: {error}") from error


async def _measure(step: Step, training: list[Prompt], held_out: list[Prompt]) -> Measurement:
    spec = step.spec
    async with VllmClient(spec) as client:
        # Not with the held-out prompts, whose prefixes would then be cached when they are timed.
        step.events.phase("warming_up")
        await _answer_all(client, training[: spec.eval_concurrency], WARM_UP_TOKENS, spec.eval_concurrency)
        await _settled(client)

        step.events.phase("measuring")
        before = await client.metrics()
        started = time.monotonic()
        outputs = await _answer_all(client, held_out, spec.max_new_tokens, spec.eval_concurrency, step)
        seconds = time.monotonic() - started
        after = await _settled(client)

    measurement = Measurement(outputs, seconds, Speculation.between(before, after))
    counted = _generated(after) - _generated(before)
    if counted > measurement.generated_tokens:
        step.events.warning(
            f"the server generated {counted} tokens while {measurement.generated_tokens} were asked for here: "
            "somebody else used it, and the figures are disturbed"
        )
    return measurement


async def _answer_all(
    client: VllmClient, prompts: list[Prompt], max_new_tokens: int, concurrency: int, step: Step | None = None
) -> dict[str, list[int]]:
    greedy = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=max_new_tokens, seed=0)
    outputs: dict[str, list[int]] = {}

    async def answer(prompt: Prompt) -> None:
        outputs[prompt.id] = (await client.answer_patiently(prompt, greedy)).token_ids
        if step:
            step.events.progress(len(outputs), len(prompts), "prompts")

    await for_each(prompts, concurrency, answer)
    return outputs


async def _settled(client: VllmClient) -> Metrics:
    """The counters once they stand still: they lag a little behind the answers."""
    deadline = time.monotonic() + SETTLE_SECONDS
    latest = await client.metrics()
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        previous, latest = latest, await client.metrics()
        if latest.requests_in_flight == 0 and _generated(latest) == _generated(previous):
            break
    return latest


def _generated(metrics: Metrics) -> int:
    return int(metrics.total("vllm:generation_tokens_total") or 0)


def compare_outputs(plain: dict[str, list[int]], draft: dict[str, list[int]]) -> dict[str, Any]:
    """How greedy answers differ: `{outputs_compared, outputs_identical, outputs_different, first_divergence}`.

    `first_divergence` is the earliest `{id, position}` (in generated tokens), None without one. In 16-bit arithmetic a
    near tie may go the other way when tokens are verified in another batch shape.
    """
    common = [name for name in draft if name in plain]
    divergences = {name: position for name in common if (position := _divergence(plain[name], draft[name])) is not None}
    earliest = min(divergences, key=divergences.__getitem__, default=None)
    return {
        "outputs_compared": len(common),
        "outputs_identical": len(common) - len(divergences),
        "outputs_different": len(divergences),
        "first_divergence": {"id": earliest, "position": divergences[earliest]} if earliest is not None else None,
    }


def _divergence(left: list[int], right: list[int]) -> int | None:
    if left == right:
        return None
    differing = (position for position, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differing, min(len(left), len(right)))


def require_speculation(measurement: Measurement, url: str) -> Speculation:
    """Raises ConfigError when the server has no draft head, JobFailed when the draft proposed nothing."""
    speculation = measurement.speculation
    if speculation is None:
        raise ConfigError(f"the server at {url} has no speculation counters: it serves no draft head; run serve_draft")
    if not speculation.drafts:
        raise JobFailed("no_drafts", f"the server at {url} never drafted while it answered the held-out prompts")
    return speculation
