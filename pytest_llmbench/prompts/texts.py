"""The texts that ship with the package: loaded, hashed, versioned.

A number of one version of the texts is no baseline for another: whoever changes a text, the word list or the filler
log raises ``PROMPTS_VERSION`` (a test holds manifest and version together).
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from pytest_llmbench.errors import InputError

PROMPTS_VERSION = "1"

# What a user may name as a prompt; ``question`` and ``words`` are our own parts of other prompts.
PROMPT_IDS = ("code", "prose", "long_answer")
TEXT_NAMES = (*PROMPT_IDS, "question", "words")

# sha256 of each text (UTF-8, line ends "\n"); the contract quotes them.
MANIFEST: dict[str, str] = {
    "code": "4c7fa28ddc532628a2e1ad4005179c837921b7e9f6a5e360d7f284826a7a3f09",
    "prose": "80fe15c5373ff6309aed0c3334901e7f4eb114691d328c5f70d619423c85b306",
    "long_answer": "0539efe41e48b05c41924b63d8dc253f8bfe6037f99e05f68ee9e6e93e0fcc8e",
    "question": "30f20eea026b435a609cb253fae3e1e65dbab287d8aebe04de54513b83e2117f",
    "words": "7ad974f09d3a3c81793e82612e4d17683e38342193cebbde86dd516084088542",
}


@cache
def load_text(name: str) -> str:
    """One of our own texts, without the last line end. Raises InputError for a name that is not in ``TEXT_NAMES``."""
    if name not in TEXT_NAMES:
        raise InputError("prompt_id", name, "there is no such text", f"use one of {', '.join(PROMPT_IDS)}")
    raw = (files("pytest_llmbench.prompts") / "texts" / f"{name}.txt").read_bytes()
    # A checkout with converted line ends must not make other prompts.
    return raw.decode("utf-8").replace("\r\n", "\n").rstrip("\n")


def text_sha256(text: str) -> str:
    """sha256 of the text's UTF-8 bytes, in hex."""
    return sha256(text.encode("utf-8")).hexdigest()
