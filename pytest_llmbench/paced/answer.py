"""What the paced model says: how many tokens, of which kind, cut into which chunks."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.paced.tokenizer import encode, piece_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.paced.ask import Ask
    from pytest_llmbench.paced.pace import Pace

_JSON_SAFE = bytes.maketrans(b'\\"\n\t\r', b"/'   ")
Kind = Literal["content", "reasoning", "tool"]

_TEXT = (
    "The river kept its own time. In the morning it carried the light of the hills past the mill, and by noon it was"
    " slow and brown under the bridge, where children counted the boats and an old man mended nets. Nobody in the town"
    " could say how long the water took from the spring to the sea; they only knew that it never arrived late, because"
    " it had never promised to arrive. When the evening wind turned, the lamps along the quay were lit one after"
    " another, each a little later than the last, and the reflections walked out to meet them.\n"
)
_DEFAULT_IDS = tuple(encode(_TEXT))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that leave together: the index of the last one (from 0), their kind, ids and text."""

    last: int
    tokens: int
    kind: Kind
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. tokens: all generated ones; with stop ``eos`` the last of them is the end of text, without a chunk."""

    tokens: int
    stop: Literal["eos", "limit"]
    truncated: bool
    ids: tuple[int, ...]  # repeated as often as needed
    reasoning: int
    tool_from: int | None

    @property
    def texts(self) -> int:
        """The tokens that have a text."""
        return self.tokens - (self.stop == "eos")

    def kind(self, k: int) -> Kind:
        if self.tool_from is not None and k >= self.tool_from:
            return "tool"
        return "reasoning" if k < self.reasoning else "content"

    def piece(self, k: int) -> bytes:
        """The bytes of token k. A tool call's arguments are one JSON object, so its pieces are escaped and wrapped."""
        raw = piece_bytes(self.ids[k % len(self.ids)])
        if self.kind(k) != "tool":
            return raw
        raw = raw.translate(_JSON_SAFE)
        start = b'{"text":"' if k == self.tool_from else b""
        return start + raw + (b'"}' if k == self.texts - 1 else b"")


def make_answer(pace: Pace, ask: Ask, *, n_ctx: int) -> Answer:
    """How the answer to a request ends: by itself, at its limit, or at the end of the context (``truncated``)."""
    ids = tuple(encode(pace.answer)) if pace.answer else _DEFAULT_IDS
    room = n_ctx - len(ask.prompt_ids)
    tokens, truncated = room, True
    if pace.truncate_after is not None and pace.truncate_after <= tokens:
        tokens = max(1, pace.truncate_after)
    if ask.limit is not None and max(1, ask.limit) <= tokens:
        tokens, truncated = max(1, ask.limit), False
    stop: Literal["eos", "limit"] = "limit"
    if not (ask.ignore_eos and pace.honours_ignore_eos):
        ends = [pace.stop_after] if pace.stop_after is not None else []
        if pace.answer is not None:
            ends.append(len(ids) + 1 if pace.answer else 1)
        if ends and max(1, min(ends)) <= tokens:
            tokens, truncated, stop = max(1, min(ends)), False, "eos"
    thinks = ask.thinking or not pace.honours_thinking_off
    return Answer(
        tokens, stop, truncated, ids,
        reasoning=pace.reasoning_tokens if thinks and ask.is_chat else 0,
        tool_from=pace.tool_call_from if ask.is_chat else None,
    )  # fmt: skip


def make_chunks(pace: Pace, answer: Answer) -> Iterator[Chunk]:
    """The chunks of an answer, one after the other; a character is never cut, so its tokens wait for its last byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    first, text = 0, ""
    size = pace.first_chunk_tokens or pace.tokens_per_chunk
    kind = answer.kind(0)
    for k in range(answer.texts):
        following = answer.kind(k + 1) if k + 1 < answer.texts else None
        text += decoder.decode(answer.piece(k), final=following != kind)
        silent = pace.silent_every and (k + 1) % pace.silent_every == 0
        if text and (following != kind or not (silent or k + 1 - first < size)):
            ids = tuple(answer.ids[i % len(answer.ids)] for i in range(first, k + 1))
            yield Chunk(last=k, tokens=k + 1 - first, kind=kind, ids=ids, text=text)
            first, text, size = k + 1, "", pace.tokens_per_chunk
        kind = following or kind
