"""The JSON that llama-server speaks, byte order included; captured from a real one and held beside it by a test."""

from __future__ import annotations

import json
import secrets
import string
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_llmbench.paced.answer import Answer, Chunk
    from pytest_llmbench.paced.ask import Ask

BUILD = "b0-unknown"
Event = tuple[str, bytes]  # (truth kind, SSE bytes)


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dumps(data: Any) -> bytes:
    return _encode(data).encode("utf-8", "surrogatepass")


def sse(data: Any) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"


def error_body(code: int, message: str, kind: str, **more: Any) -> dict[str, Any]:
    """The body of an error that comes from a route (``code`` first, as the real one has it)."""
    return {"error": {"code": code, "message": message, "type": kind, **more}}


def random_id(length: int = 32) -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": completion + prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Speech:
    """How one request's endpoint puts chunks and ends into words."""

    def __init__(self, ask: Ask, model: str, slot_id: int) -> None:
        self.ask, self.model, self.slot_id = ask, model, slot_id
        self.id = "chatcmpl-" + random_id()
        self.tool_id = random_id()
        self.created = int(time.time())
        tail = {"created": self.created, "id": self.id, "model": model, "system_fingerprint": BUILD}
        self._tail = b"}]," + dumps({**tail, "object": "chat.completion.chunk"})[1:-1]
        self._first_tool = True

    def role(self, progress: dict[str, Any] | None = None, timings: dict[str, Any] | None = None) -> bytes:
        """The chunk that says "assistant" (chat), or reports progress; empty where the endpoint has none."""
        if self.ask.endpoint == "chat":
            return self._chat(b'{"role":"assistant","content":null}', None, progress)
        if progress is None or self.ask.endpoint == "text":
            return b""
        data = self._partial("", (0,), 0)
        return sse({**data, **({"timings": timings} if timings else {}), "prompt_progress": progress})

    def text(self, chunk: Chunk, timings: dict[str, Any] | None) -> bytes:
        if self.ask.endpoint == "chat":
            return self._chat(self._delta(chunk), timings, None)
        more = {"timings": timings} if timings else {}
        if self.ask.endpoint == "completion":
            return sse({**self._partial(chunk.text, chunk.ids, chunk.last + 1), **more})
        return sse({**self._text_completion(chunk.text, None), "id": self.id, **more})

    def end(
        self, answer: Answer, *, finish: bool, counts: dict[str, Any] | None, timings: dict[str, Any] | None,
        whole_text: str,
    ) -> list[Event]:  # fmt: skip
        """The last events before ``[DONE]``: finish, and usage where asked; ``timings`` rides in the last of them."""
        more = {"timings": timings} if timings else {}
        if self.ask.endpoint == "completion":
            return [("finish", sse(self.final_completion(answer, "", whole_text, timings)))] if finish else []
        if self.ask.endpoint == "text":
            data = self._text_completion("", self._reason(answer))
            return (
                [("finish", sse({**data, **({"usage": counts} if counts else {}), "id": self.id, **more}))]
                if finish
                else []
            )
        events: list[Event] = []
        with_usage = self.ask.include_usage and counts is not None
        if finish:
            data = self._chat_object([{"finish_reason": self._reason(answer), "index": 0, "delta": {}}])
            events.append(("finish", sse({**data, **({} if with_usage else more)})))
        if with_usage:
            events.append(("usage", sse({**self._chat_object([]), "usage": counts, **more})))
        return events

    def whole(
        self, answer: Answer, chunks: list[Chunk], counts: dict[str, Any] | None, timings: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        texts = {kind: "".join(c.text for c in chunks if c.kind == kind) for kind in ("content", "reasoning", "tool")}
        more = {"timings": timings} if timings else {}
        with_usage = {"usage": counts} if counts else {}
        if self.ask.endpoint == "completion":
            return self.final_completion(answer, texts["content"], texts["content"], timings)
        if self.ask.endpoint == "text":
            data = self._text_completion(texts["content"], self._reason(answer))
            return {**data, **with_usage, "id": self.id, **more}
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"]}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if texts["tool"]:
            function = {"name": "look_up", "arguments": texts["tool"]}
            message["tool_calls"] = [{"type": "function", "function": function, "id": self.tool_id}]
        return {
            "choices": [{"finish_reason": self._reason(answer), "index": 0, "message": message}],
            "created": self.created,
            "model": self.model,
            "system_fingerprint": BUILD,
            "object": "chat.completion",
            **with_usage,
            "id": self.id,
            **more,
        }

    def final_completion(
        self, answer: Answer, content: str, whole_text: str, timings: dict[str, Any] | None
    ) -> dict[str, Any]:
        n_prompt = len(self.ask.prompt_ids)
        return {
            "index": 0,
            "content": content,
            "tokens": [],
            "id_slot": self.slot_id,
            "stop": True,
            "model": self.model,
            "tokens_predicted": answer.tokens,
            "tokens_evaluated": n_prompt,
            "generation_settings": generation_settings(self.ask),
            "prompt": self.ask.prompt,
            "has_new_line": "\n" in whole_text,
            "truncated": answer.truncated,
            "stop_type": answer.stop,
            "stopping_word": "",
            "tokens_cached": n_prompt + answer.tokens - 1,
            **({"timings": timings} if timings else {}),
        }

    def _reason(self, answer: Answer) -> str:
        if answer.stop == "limit":
            return "length"
        return "stop" if answer.tool_from is None or answer.tool_from >= answer.texts else "tool_calls"

    def _delta(self, chunk: Chunk) -> bytes:
        if chunk.kind == "tool":
            call: dict[str, Any] = {"index": 0}
            if self._first_tool:
                call |= {"id": self.tool_id, "type": "function"}
            call["function"] = {**({"name": "look_up"} if self._first_tool else {}), "arguments": chunk.text}
            self._first_tool = False
            return dumps({"tool_calls": [call]})
        key = b'{"reasoning_content":' if chunk.kind == "reasoning" else b'{"content":'
        return key + dumps(chunk.text) + b"}"

    def _chat(self, delta: bytes, timings: dict[str, Any] | None, progress: dict[str, Any] | None) -> bytes:
        # Put together from bytes: this is on the timed path of every stream.
        more = b""
        if timings:
            more += b',"timings":' + dumps(timings)
        if progress:
            more += b',"prompt_progress":' + dumps(progress)
        return b'data: {"choices":[{"finish_reason":null,"index":0,"delta":' + delta + self._tail + more + b"}\n\n"

    def _chat_object(self, choices: list[Any]) -> dict[str, Any]:
        return {
            "choices": choices,
            "created": self.created,
            "id": self.id,
            "model": self.model,
            "system_fingerprint": BUILD,
            "object": "chat.completion.chunk",
        }

    def _partial(self, text: str, ids: tuple[int, ...], predicted: int) -> dict[str, Any]:
        return {
            "index": 0,
            "content": text,
            "tokens": list(ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": predicted,
            "tokens_evaluated": len(self.ask.prompt_ids),
        }

    def _text_completion(self, text: str, reason: str | None) -> dict[str, Any]:
        return {
            "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}],
            "created": self.created,
            "model": self.model,
            "system_fingerprint": BUILD,
            "object": "text_completion",
        }


def generation_settings(ask: Ask | None) -> dict[str, Any]:
    """``generation_settings`` of a /completion answer; without a request, the defaults that ``/props`` shows."""
    body = ask.body if ask else {}
    limit = -1 if ask is None or ask.limit is None else ask.limit
    full = ask is not None
    settings: dict[str, Any] = {
        "seed": 4294967295, "temperature": 0.800000011920929, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
        "top_k": 40, "top_p": 0.949999988079071, "min_p": 0.05000000074505806, "top_n_sigma": -1.0,
        "xtc_probability": 0.0, "xtc_threshold": 0.10000000149011612, "typical_p": 1.0, "repeat_last_n": 64,
        "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0,
        "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
        **({"dry_sequence_breakers": ["\n", ":", '"', "*"]} if full else {}),
        "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.10000000149011612, "adaptive_target": -1.0,
        "adaptive_decay": 0.8999999761581421, **({"stop": []} if full else {}), "max_tokens": limit,
        "n_predict": limit, "n_keep": 0, "n_discard": 0, "ignore_eos": False, "stream": False,
        **({"logit_bias": []} if full else {}), "n_probs": 0, "min_keep": 0,
        **({"grammar": "", "grammar_lazy": False, "grammar_triggers": [], "preserved_tokens": []} if full else {}),
        "chat_format": "Content-only", "reasoning_format": "deepseek" if full else "none",
        "reasoning_in_content": False, "generation_prompt": "",
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        "speculative.types": "none", "timings_per_token": False, "post_sampling_probs": False,
        "backend_sampling": False, "lora": [],
    }  # fmt: skip
    same_type = {k: v for k, v in body.items() if k in settings and k not in ("max_tokens", "n_predict")}
    return settings | {k: float(v) if isinstance(settings[k], float) else v for k, v in same_type.items()}
