"""Words that make the beginning of each request its own, the same in every session."""

from __future__ import annotations

from functools import cache
from hashlib import sha256

from pytest_llmbench.prompts.texts import load_text

NONCE_WORDS = 6


@cache
def _words() -> tuple[str, ...]:
    words = tuple(load_text("words").split())
    assert len(words) == 512  # 9 bits a word
    return words


def nonce(plan_digest: str, cell_id: str, run: int, attempt: int = 1, request: int = 0) -> str:
    """The first words of a request's user message: six ordinary words that depend on nothing but the arguments.

    Two requests differ within their first words (9 bits a word; 27 bits in three), so no prompt cache can serve more
    than the chat template. Each word is one token in common vocabularies, with and without a space before it, so the
    token count hardly varies. Source: METHOD, "Prompts are unique per request and the same in every session".
    """
    # Written out with lengths, so that no two argument lists read the same.
    parts = (plan_digest, cell_id, str(run), str(attempt), str(request))
    digest = sha256("".join(f"{len(part)}:{part}" for part in parts).encode("utf-8")).digest()
    bits = int.from_bytes(digest, "big")
    words = _words()
    return " ".join(words[(bits >> 9 * place) & 511] for place in range(NONCE_WORDS))
