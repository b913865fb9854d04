"""``decode``: how fast tokens come after the first one, on a code and a prose prompt (METHOD, "Speed")."""

from pytest_llmbench.measure.part import CHARS, DECODE, SERVER_DECODE, TTFT, WORDS, SingleRequestPart

PART = SingleRequestPart("decode", (DECODE, TTFT, WORDS, CHARS, SERVER_DECODE), headline="decode_tok_s")
