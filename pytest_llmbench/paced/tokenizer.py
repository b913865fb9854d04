"""A small reversible tokeniser: deterministic, stateless, and not additive, as real ones are not.

Pieces: an ASCII letter run in pieces of at most four characters (one leading space counts as one of them), digits in
threes, white space in runs of at most four, every other ASCII character alone, every other character as its UTF-8
bytes. An id says what it stands for, so nothing is kept between calls.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

BOS: Final = 0
IM_START: Final = 1
IM_END: Final = 2
SPECIAL: Final = {"<|bos|>": BOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_BYTE_BASE: Final = 3
_PIECE_BASE: Final = 512
_SPECIAL_TEXT: Final = {number: text for text, number in SPECIAL.items()}
_PIECE: Final = re.compile(r" [A-Za-z]{1,3}|[A-Za-z]{1,4}|[0-9]{1,3}|[ \t\r\n]{1,4}|[\x00-\x7f]|[^\x00-\x7f]+")
_MARKER: Final = re.compile("(" + "|".join(re.escape(text) for text in SPECIAL) + ")")


@lru_cache(maxsize=65536)
def _ids(piece: str) -> tuple[int, ...]:
    if not piece.isascii():
        return tuple(_BYTE_BASE + byte for byte in piece.encode("utf-8", "surrogatepass"))
    number = 0
    for character in piece:
        number = number * 128 + ord(character) + 1
    return (_PIECE_BASE + number,)


def encode(text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
    """Token ids of a text; ``add_bos`` puts BOS in front, ``parse_special`` makes one token of each marker."""
    ids = [BOS] if add_bos else []
    for part in _MARKER.split(text) if parse_special else [text]:
        if parse_special and part in SPECIAL:
            ids.append(SPECIAL[part])
            continue
        for piece in _PIECE.findall(part):
            ids.extend(_ids(piece))
    return ids


@lru_cache(maxsize=65536)
def piece_bytes(token: int) -> bytes:
    """The bytes that one id stands for. An id that no text gives stands for nothing."""
    if token in _SPECIAL_TEXT:
        return _SPECIAL_TEXT[token].encode()
    if _BYTE_BASE <= token < _BYTE_BASE + 256:
        return bytes([token - _BYTE_BASE])
    if token < _PIECE_BASE:
        return b""
    number, characters = token - _PIECE_BASE, bytearray()
    while number > 0:
        number, rest = divmod(number - 1, 128)
        characters.append(rest)
    return bytes(reversed(characters))


def decode(ids: list[int]) -> str:
    """The text of token ids; broken UTF-8 becomes U+FFFD."""
    return b"".join(piece_bytes(token) for token in ids).decode("utf-8", "replace")


def chat_prompt(messages: list[dict[str, object]]) -> str:
    """The ChatML prompt of chat messages: what ``/apply-template`` answers.

    A content may be a string or a list of ``{"type": "text", "text": …}`` parts. Raises ValueError in the words of
    the real server where it is neither.
    """
    out = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if content is not None and not isinstance(content, str):
            raise ValueError("Invalid 'content' type: expected string or array")
        out.append(f"<|im_start|>{message.get('role', 'user')}\n{content or ''}<|im_end|>\n")
    return "".join(out) + "<|im_start|>assistant\n"
