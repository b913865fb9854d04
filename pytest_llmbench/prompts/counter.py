"""Counts a prompt's tokens the way the server will: chat template, BOS and extra request fields included."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from pytest_llmbench.errors import ServerError

# A million tokens of an SPM vocabulary take a busy machine tens of seconds.
_TIMEOUT_S = 600.0
_COUNT_PATH = "/v1/chat/completions/input_tokens"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a prompt of one size with one task come out right: whole log lines, then padding words."""

    lines: int
    pads: int


@dataclass(slots=True)
class Learnt:
    """What is known about one tokenizer and chat template. Only spares calls: it never changes a resulting text.

    base: tokens of nonce, frame, task and template without log, by task; lines: tokens per log line; unit: the padding word.
    """

    base: dict[str, int] = field(default_factory=dict)
    line_tokens: float | None = None
    unit: str | None = None
    recipes: dict[tuple[int, str], Recipe] = field(default_factory=dict)


class TokenCounter(Protocol):
    """Counts as the server of one tokenizer, chat template and set of extra request fields does."""

    @property
    def learnt(self) -> Learnt:
        """Kept between prompts; never shared by counters that may count differently."""
        ...

    async def chat_tokens(self, text: str) -> int:
        """Prompt tokens of a chat request with ``text`` as its only user message, template included."""
        ...


class LlamaTokenCounter:
    """A TokenCounter that asks a llama-server (``POST /v1/chat/completions/input_tokens``).

    client: an ``httpx.AsyncClient`` with the server as base_url. extra_body: the fields that every chat request of the
    part carries and a template may read (``chat_template_kwargs``, ``reasoning_effort``); make one counter for each such set.
    A build without that endpoint is asked through ``/apply-template`` and ``/tokenize``; which one is found out once.
    learnt: of an earlier counter for the same model, template and extra_body (another server start), to spare calls.
    calls: HTTP requests made so far. Raises ServerError when the server does not count.
    """

    def __init__(
        self, client: httpx.AsyncClient, extra_body: dict[str, Any] | None = None, learnt: Learnt | None = None
    ) -> None:
        self._client = client
        self._extra_body = dict(extra_body or {})
        self._has_count_endpoint: bool | None = None
        self.learnt = learnt or Learnt()
        self.calls = 0

    async def chat_tokens(self, text: str) -> int:
        """Prompt tokens of a chat request with ``text`` as its only user message, template included."""
        body = {**self._extra_body, "messages": [{"role": "user", "content": text}]}
        if self._has_count_endpoint is not False:
            response = await self._post(_COUNT_PATH, body)
            # 404 and 405 mean "no such endpoint" only as long as it has never answered.
            if self._has_count_endpoint or response.status_code not in {404, 405, 501}:
                count = _member(response, _COUNT_PATH, "input_tokens", int)
                self._has_count_endpoint = True
                return int(count)
            self._has_count_endpoint = False
        rendered = _member(await self._post("/apply-template", body), "/apply-template", "prompt", str)
        request = {"content": rendered, "add_special": True, "parse_special": True}
        return len(_member(await self._post("/tokenize", request), "/tokenize", "tokens", list))

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        self.calls += 1
        try:
            return await self._client.post(path, json=body, timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise ServerError(
                f"counting prompt tokens: {path} gave no answer: {type(error).__name__}: {error}"
            ) from error


def _member(response: httpx.Response, path: str, name: str, kind: type) -> Any:
    """One member of a JSON answer, or a ServerError that quotes what came instead."""
    try:
        value = response.json()[name] if response.status_code == httpx.codes.OK else None
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, kind):
        raise ServerError(
            f"counting prompt tokens: {path} answered {response.status_code} without {name!r}: {response.text[:300]}"
        )
    return value
