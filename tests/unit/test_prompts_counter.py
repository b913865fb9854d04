"""LlamaTokenCounter against scripted servers: with the counting endpoint, without it, and failing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pytest_llmbench.errors import ServerError
from pytest_llmbench.prompts import LlamaTokenCounter

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRA = {"chat_template_kwargs": {"enable_thinking": False}}
MESSAGES = [{"role": "user", "content": "hello"}]


class Server:
    """Answers from a table of path → (status, JSON) and keeps the requests."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.url.path, json.loads(request.content)))
        status, answer = self.answers.get(request.url.path, (404, {"error": "File Not Found"}))
        return httpx.Response(status, json=answer)


def _client(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(handler))


@pytest.mark.asyncio
async def test_counting_endpoint_gets_the_fields_of_the_real_request() -> None:
    server = Server({"/v1/chat/completions/input_tokens": (200, {"input_tokens": 31})})
    async with _client(server) as client:
        counter = LlamaTokenCounter(client, EXTRA)
        assert await counter.chat_tokens("hello") == 31
    assert server.seen == [("/v1/chat/completions/input_tokens", {**EXTRA, "messages": MESSAGES})]
    assert counter.calls == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_older_server_is_asked_the_long_way_and_found_out_once(status: int) -> None:
    server = Server(
        {
            "/v1/chat/completions/input_tokens": (status, {}),
            "/apply-template": (200, {"prompt": "<user>hello"}),
            "/tokenize": (200, {"tokens": [1, 2, 3, 4]}),
        }
    )
    async with _client(server) as client:
        counter = LlamaTokenCounter(client, EXTRA)
        assert [await counter.chat_tokens("hello"), await counter.chat_tokens("hello")] == [4, 4]
    assert [path for path, _ in server.seen] == [
        "/v1/chat/completions/input_tokens",
        *("/apply-template", "/tokenize") * 2,
    ]
    assert server.seen[1][1] == {**EXTRA, "messages": MESSAGES}
    assert server.seen[2][1] == {"content": "<user>hello", "add_special": True, "parse_special": True}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v1/chat/completions/input_tokens": (503, {"error": {"message": "Loading model"}})},
        {"/v1/chat/completions/input_tokens": (200, {"input_tokens": "many"})},
        {"/v1/chat/completions/input_tokens": (200, ["no object"])},
        {"/apply-template": (200, {"prompt": "x"}), "/tokenize": (200, {})},
    ],
)
async def test_server_that_does_not_count_is_an_error_that_quotes_it(answers: dict[str, tuple[int, Any]]) -> None:
    async with _client(Server(answers)) as client:
        with pytest.raises(ServerError, match=r"counting prompt tokens: /\S+ answered \d+ without"):
            await LlamaTokenCounter(client).chat_tokens("hello")


@pytest.mark.asyncio
async def test_endpoint_that_vanishes_is_an_error_and_not_an_older_server() -> None:
    server = Server({"/v1/chat/completions/input_tokens": (200, {"input_tokens": 31})})
    async with _client(server) as client:
        counter = LlamaTokenCounter(client)
        await counter.chat_tokens("hello")
        server.answers.clear()
        with pytest.raises(ServerError, match="answered 404"):
            await counter.chat_tokens("hello")


@pytest.mark.asyncio
async def test_dead_server_is_a_server_error() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    async with _client(refuse) as client:
        with pytest.raises(ServerError, match="gave no answer: ConnectError: connection refused"):
            await LlamaTokenCounter(client).chat_tokens("hello")
