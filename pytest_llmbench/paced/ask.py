"""A request body as the paced server understands it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pytest_llmbench.paced.tokenizer import chat_prompt, decode, encode

Endpoint = Literal["chat", "completion", "text"]


class BadRequestError(Exception):
    """A request that is refused with HTTP 400; the text is the real server's where it is one that users meet."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one generating request asks for. limit: answer tokens, None for none."""

    endpoint: Endpoint
    body: dict[str, Any]
    prompt: str
    prompt_ids: tuple[int, ...]
    stream: bool
    limit: int | None
    ignore_eos: bool
    thinking: bool
    include_usage: bool
    timings_per_token: bool
    return_progress: bool
    cache_prompt: bool

    @property
    def is_chat(self) -> bool:
        return self.endpoint == "chat"


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, or BadRequestError."""
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise BadRequestError(f"[json.exception.parse_error.101] parse error: {error}") from error
    if not isinstance(data, dict):
        raise BadRequestError("[json.exception.type_error.304] cannot use at() with a value that is not an object")
    return data


def prompt_of_chat(body: dict[str, Any]) -> str:
    """The template applied to ``messages``."""
    if "messages" not in body:
        raise BadRequestError("'messages' is required")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise BadRequestError("Expected 'messages' to be an array")
    if not all(isinstance(one, dict) for one in messages):
        raise BadRequestError("Expected 'messages' to be an array of objects")
    try:
        return chat_prompt(messages)
    except ValueError as error:
        raise BadRequestError(str(error)) from error


def parse_ask(endpoint: Endpoint, raw: bytes, *, add_bos: bool, default_limit: int | None) -> Ask:
    """A generating request. ``n_predict`` beats ``max_completion_tokens`` beats ``max_tokens``, as in the real server."""
    body = parse_object(raw)
    if endpoint == "chat":
        prompt = prompt_of_chat(body)
        ids = encode(prompt, add_bos=add_bos)
    else:
        prompt, ids = _prompt_of_completion(body, add_bos=add_bos)
    kwargs = body.get("chat_template_kwargs")
    enabled = kwargs.get("enable_thinking", True) if isinstance(kwargs, dict) else True
    if isinstance(enabled, str):
        raise BadRequestError('invalid type for "enable_thinking" (expected boolean, got string)')
    options = body.get("stream_options")
    return Ask(
        endpoint=endpoint,
        body=body,
        prompt=prompt,
        prompt_ids=tuple(ids),
        stream=body.get("stream") is True,
        limit=_limit(body, default_limit),
        ignore_eos=body.get("ignore_eos") is True,
        thinking=enabled is not False and body.get("reasoning_effort") != "none",
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        timings_per_token=body.get("timings_per_token") is True,
        return_progress=body.get("return_progress") is True,
        cache_prompt=body.get("cache_prompt") is not False,
    )


def _prompt_of_completion(body: dict[str, Any], *, add_bos: bool) -> tuple[str, list[int]]:
    if "prompt" not in body:
        raise BadRequestError("[json.exception.out_of_range.403] key 'prompt' not found")
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return prompt, encode(prompt, add_bos=add_bos)
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        return decode(prompt), list(prompt)
    raise BadRequestError(
        '"prompt" must be a string, an list of tokens, a list of mixed strings & tokens, or a list of prompts'
    )


def _limit(body: dict[str, Any], default: int | None) -> int | None:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise BadRequestError(
                f"[json.exception.type_error.302] type must be number, but is {type(value).__name__}: {name}"
            )
        return value if value >= 0 else None
    return default
