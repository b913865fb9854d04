"""The prompt of one request of a cell, for every part that has prompts of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError
from pytest_llmbench.prompts.exact import exact_prompt, plain_prompt
from pytest_llmbench.prompts.nonces import nonce
from pytest_llmbench.prompts.texts import PROMPT_IDS, load_text

if TYPE_CHECKING:
    from pytest_llmbench.prompts.counter import TokenCounter
    from pytest_llmbench.records import CellSpec, Prompt

# The text of a part whose cells need not name one; None: the cell must.
_DEFAULT_TEXT: dict[str, str | None] = {
    "decode": None,
    "concurrency": "prose",
    "long_answer": "long_answer",
    "context": None,
    "prefill": "question",
    "fit": "question",
}
_EXACT_PARTS = frozenset({"prefill", "context", "fit"})


async def build(
    spec: CellSpec, plan_digest: str, run: int, attempt: int, request: int, counter: TokenCounter
) -> Prompt:
    """The prompt that a request of a cell sends: its own nonce first, the same text in every session.

    ``decode``, ``concurrency`` and ``long_answer`` take the text as it is; ``prefill``, ``context`` and ``fit`` are filled
    with the log to exactly ``spec.prompt_tokens``, the task last. Raises InputError when the cell names no usable text or
    size. Source: METHOD, "Speed" and "Memory test".
    """
    if spec.part not in _DEFAULT_TEXT:
        raise InputError("part", spec.part, "no prompts of ours belong to it", f"use one of {', '.join(_DEFAULT_TEXT)}")
    name = spec.prompt_id or _DEFAULT_TEXT[spec.part]
    if name is None:
        raise InputError(
            f"{spec.id}.prompt_id", None, f"a {spec.part} cell has to name its text", f"one of {', '.join(PROMPT_IDS)}"
        )
    text = load_text(name)
    own = nonce(plan_digest, spec.id, run, attempt, request)
    if spec.part not in _EXACT_PARTS:
        return await plain_prompt(counter, nonce=own, text=text)
    if spec.prompt_tokens is None:
        raise InputError(
            f"{spec.id}.prompt_tokens", None, f"a {spec.part} cell has an exact size", "give the number of tokens"
        )
    return await exact_prompt(counter, n=spec.prompt_tokens, nonce=own, tail=text, field=f"{spec.id}.prompt_tokens")
