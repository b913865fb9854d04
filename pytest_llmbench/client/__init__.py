"""SSE bytes over HTTP → RequestTrace → Answer. Timestamps are taken when bytes arrive; parsing happens afterwards."""

from pytest_llmbench.client.http import LlmClient
from pytest_llmbench.client.parse import parse

__all__ = ["LlmClient", "parse"]
