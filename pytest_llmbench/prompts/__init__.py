"""Our own texts, and prompts of exactly N tokens as the server counts them."""

from __future__ import annotations

from pytest_llmbench.prompts.counter import Learnt, LlamaTokenCounter, Recipe, TokenCounter
from pytest_llmbench.prompts.exact import exact_prompt, plain_prompt
from pytest_llmbench.prompts.filler import filler_log
from pytest_llmbench.prompts.nonces import nonce
from pytest_llmbench.prompts.parts import build
from pytest_llmbench.prompts.texts import MANIFEST, PROMPT_IDS, PROMPTS_VERSION, load_text, text_sha256

__all__ = [
    "MANIFEST",
    "PROMPTS_VERSION",
    "PROMPT_IDS",
    "Learnt",
    "LlamaTokenCounter",
    "Recipe",
    "TokenCounter",
    "build",
    "exact_prompt",
    "filler_log",
    "load_text",
    "nonce",
    "plain_prompt",
    "text_sha256",
]
