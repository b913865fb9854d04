"""``prefill``: how fast a prompt of exactly N tokens is read (METHOD, "Speed")."""

from pytest_llmbench.measure.part import PREFILL, SERVER_PREFILL, TTFT, SingleRequestPart

PART = SingleRequestPart("prefill", (PREFILL, TTFT, SERVER_PREFILL), headline="prefill_tok_s")
