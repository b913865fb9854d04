"""A client for counting tokens: never the measured path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from pytest_llmbench.client.http import LlmClient


def counting_client(client: LlmClient) -> httpx.AsyncClient:
    """A client of the same server with one connection a call; use it as a context manager.

    llama-server closes a connection after its hundredth request without saying so, and a call that is on its way then
    fails; 256 prompts take more calls than that. The connections of the measured path are not worn out by it either.
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    # No certificates are loaded: the server is on this machine, and never behind TLS.
    transport = httpx.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits)
    return httpx.AsyncClient(
        base_url=client.http.base_url, headers=client.http.headers, transport=transport, trust_env=False
    )
