"""Talks to the vLLM server from the same GPU host: chat completions with the server's own token ids, counters."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

from eagle3.contract.run_spec import RunSpec
from eagle3.remote.dataset import Prompt
from eagle3.remote.vllm_metrics import Metrics

T = TypeVar("T")

RETRY_SECONDS = (2.0, 10.0)
QUICK_SECONDS = 30.0


class RequestFailed(Exception):
    """The server did not answer one request. `transient`: the same request may succeed later."""

    def __init__(self, message: str, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


@dataclass(frozen=True)
class Sampling:
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class Answer:
    prompt_token_ids: list[int]
    token_ids: list[int]
    reasoning: str | None
    content: str | None
    finish_reason: str


class VllmClient:
    """One pool of connections. Use as `async with VllmClient(spec) as client`."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        # A long answer is not an error: hangs are found by the server's counters, not by a time-out.
        # trust_env off: a proxy of the environment must not get the host's loopback traffic.
        key = os.environ.get("VLLM_API_KEY")  # of the host's login environment, where the server has it from too
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            base_url=spec.server_url,
            timeout=httpx.Timeout(None, connect=QUICK_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def is_healthy(self) -> bool:
        try:
            return (await self._http.get("/health", timeout=QUICK_SECONDS)).status_code == 200
        except httpx.HTTPError:
            return False

    async def metrics(self) -> Metrics:
        """Raises RequestFailed."""
        return Metrics.parse((await self._request("GET", "/metrics", timeout=QUICK_SECONDS)).text)

    async def answer(self, prompt: Prompt, sampling: Sampling) -> Answer:
        """One chat completion, with as many new tokens as the model length leaves room for. Raises RequestFailed."""
        tokenized = await self._request(
            "POST", "/tokenize", json={"model": self._spec.served_model_name, "messages": prompt.messages}
        )
        # One less than fits: extraction needs room for a token behind the longest row.
        room = self._spec.max_model_len - int(tokenized.json()["count"]) - 1
        if room < 1:
            raise RequestFailed(f"prompt has {tokenized.json()['count']} tokens: no room to answer", transient=False)
        response = await self._request(
            "POST",
            "/v1/chat/completions",
            json={
                "model": self._spec.served_model_name,
                "messages": prompt.messages,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": min(sampling.max_new_tokens, room),
                "seed": sampling.seed,
                "return_token_ids": True,
            },
        )
        return _parse_answer(response.json())

    async def answer_patiently(self, prompt: Prompt, sampling: Sampling) -> Answer:
        """`answer`, tried again after a transient failure. Raises RequestFailed when that does not help either."""
        for pause in RETRY_SECONDS:
            try:
                return await self.answer(prompt, sampling)
            except RequestFailed as error:
                if not error.transient:
                    raise
            await asyncio.sleep(pause)
        return await self.answer(prompt, sampling)

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise RequestFailed(f"{method} {path}: {error!r}", transient=True) from error
        if response.status_code != 200:
            transient = response.status_code in (408, 429) or response.status_code >= 500
            raise RequestFailed(f"{method} {path}: {response.status_code} {response.text[:500]}", transient)
        return response


def _parse_answer(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    prompt_token_ids, token_ids = body.get("prompt_token_ids"), choice.get("token_ids")
    if not prompt_token_ids or token_ids is None:
        raise RequestFailed("the answer has no token ids: this vLLM does not know return_token_ids", transient=False)
    if not token_ids:
        raise RequestFailed("the answer is empty", transient=False)
    if len(token_ids) != body["usage"]["completion_tokens"]:
        counted = body["usage"]["completion_tokens"]
        raise RequestFailed(f"{len(token_ids)} token ids for {counted} generated tokens", transient=False)
    return Answer(
        prompt_token_ids,
        token_ids,
        message.get("reasoning") or message.get("reasoning_content"),  # the second is its name in older vLLM
        message.get("content"),
        choice["finish_reason"],
    )


async def for_each(items: Iterable[T], concurrency: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Run `work` on every item, at most `concurrency` at once. The first exception ends all of it."""
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
