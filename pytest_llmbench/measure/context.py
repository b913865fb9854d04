"""``context``: prefill, first token and decode behind a long prompt of exactly N tokens (METHOD, "Speed")."""

from pytest_llmbench.measure.part import DECODE, PREFILL, SERVER_DECODE, SERVER_PREFILL, TTFT, SingleRequestPart

PART = SingleRequestPart("context", (DECODE, PREFILL, TTFT, SERVER_DECODE, SERVER_PREFILL), headline="decode_tok_s")
