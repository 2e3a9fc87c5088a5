"""Step `generate_traces`, on the GPU host: the live server answers the training prompts; its token ids become traces.

By hand: `python -m eagle3.remote generate_traces --run-dir DIR`. Killed and run again, it goes on where it was.
"""

import asyncio
import json
import time
from typing import Any

from eagle3.contract.errors import JobFailed
from eagle3.remote.dataset import Prompt, read_prompts
from eagle3.remote.server_watch import require, while_serving
from eagle3.remote.step import Step
from eagle3.remote.trace_file import TraceFile, fingerprint, summarise
from eagle3.remote.vllm_client import RequestFailed, Sampling, VllmClient, for_each

FAILED_SHARE = 0.05
CUT_SHARE = 0.2
REPORT_SECONDS = 2.0


def run(step: Step) -> dict[str, Any]:
    """Result: `{num_traces, resumed, failed, prompt_tokens, generated_tokens, rows_with_reasoning, finish_reasons,
    seconds, tokens_per_second}`. Counts are of the whole file; seconds and pace are of this attempt, the pace None when
    there was nothing left to generate. Raises JobFailed when more than 5 % of the prompts got no answer.
    """
    prompts, _ = read_prompts(step)
    with TraceFile.opened(step.run_dir, prompts, fingerprint(step)) as traces:
        generation = _Generation(step, traces, len(prompts))
        missing = [(number, prompt) for number, prompt in enumerate(prompts) if prompt.id not in traces.done]
        if missing:
            require(step, checkpoint=None, remedy="ensure_server")
            step.events.phase("generating")
            asyncio.run(while_serving(step, generation.answer_all(missing)))
        generation.report()
    summary = summarise(step.run_dir.traces_path)
    _warn_of_silent_losses(step, summary)
    return summary | generation.result()


class _Generation:
    """One attempt: what it did so far, and its reports."""

    def __init__(self, step: Step, traces: TraceFile, total: int) -> None:
        self._step = step
        self._traces = traces
        self._total = total
        self._resumed = len(traces.done)
        self._failed = 0
        self._tokens = 0
        self._started = time.monotonic()
        self._reported_at = 0.0
        # Those that failed last time are asked again: the file holds this attempt's failures only.
        self._failures_path = step.run_dir.trace_failures_path
        self._failures_path.write_bytes(b"")

    async def answer_all(self, missing: list[tuple[int, Prompt]]) -> None:
        async with VllmClient(self._step.spec) as client:

            async def answer(numbered: tuple[int, Prompt]) -> None:
                number, prompt = numbered
                await self._answer_one(client, number, prompt)

            await for_each(missing, self._step.spec.request_concurrency, answer)

    async def _answer_one(self, client: VllmClient, number: int, prompt: Prompt) -> None:
        spec = self._step.spec
        sampling = Sampling(spec.temperature, spec.top_p, spec.max_new_tokens, spec.seed + number)
        try:
            answer = await client.answer_patiently(prompt, sampling)
        except RequestFailed as error:
            self._record_failure(prompt, str(error))
            return
        self._traces.append(
            {
                "id": prompt.id,
                "prompt": prompt.messages,
                "prompt_token_ids": answer.prompt_token_ids,
                "token_ids": answer.token_ids,
                "reasoning": answer.reasoning,
                "content": answer.content,
                "finish_reason": answer.finish_reason,
            }
        )
        self._tokens += len(answer.token_ids)
        if time.monotonic() - self._reported_at > REPORT_SECONDS:
            self.report()

    def _record_failure(self, prompt: Prompt, reason: str) -> None:
        with open(self._failures_path, "a") as file:
            file.write(json.dumps({"id": prompt.id, "reason": reason, "t": round(time.time(), 3)}) + "\n")
        self._failed += 1
        if self._failed > FAILED_SHARE * self._total:
            raise JobFailed(
                "too_many_failures",
                f"{self._failed} of {self._total} prompts got no answer, the last one because: {reason}\n"
                f"all of them: {self._failures_path}",
            )

    def report(self) -> None:
        self._reported_at = time.monotonic()
        self._step.events.progress(len(self._traces.done), self._total, "prompts")
        self._step.events.metric("generated_tokens", self._tokens)
        if (pace := self._tokens_per_second()) is not None:
            self._step.events.metric("tokens_per_second", pace)

    def _tokens_per_second(self) -> float | None:
        return round(self._tokens / (time.monotonic() - self._started), 1) if self._tokens else None

    def result(self) -> dict[str, Any]:
        return {
            "resumed": self._resumed,
            "failed": self._failed,
            "seconds": round(time.monotonic() - self._started, 1),
            "tokens_per_second": self._tokens_per_second(),
        }


def _warn_of_silent_losses(step: Step, summary: dict[str, Any]) -> None:
    num_traces = summary["num_traces"]
    cut = summary["finish_reasons"].get("length", 0)
    if cut > CUT_SHARE * num_traces:
        step.events.warning(f"{cut} of {num_traces} answers were cut at max_new_tokens or max_model_len")
    if step.spec.reasoning_parser and not summary["rows_with_reasoning"]:
        step.events.warning(f"no answer has reasoning: is {step.spec.reasoning_parser} the target's reasoning parser?")
