"""llama-benchy (0.4) by its own client and session settings; started with the Python of llama-benchy's environment.

Its command reports means only, so its runner's loop (one session, one gather a run) is done here around its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from typing import Any


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    aiohttp = importlib.import_module("aiohttp")
    benchy = importlib.import_module("llama_benchy.client")
    level = job["concurrency"]
    client = benchy.LLMClient(f"{job['url']}/v1", "none", "paced")
    connector = aiohttp.TCPConnector(limit=level + 5, force_close=False, keepalive_timeout=600)
    results = []
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=3600), connector=connector, trust_env=True
    ) as session:
        for number in range(job["rounds"] + 1):  # the first one warms up, as its runner does it
            batch = await asyncio.gather(
                *(
                    client.run_generation(
                        session,
                        context_text="",
                        prompt_text=f"{job['nonce']} {number} {n}",
                        max_tokens=job["tokens"],
                        no_cache=True,
                    )
                    for n in range(level)
                )
            )
            results += batch if number else []
    if broken := [one.error for one in results if one.error]:
        raise RuntimeError(f"{len(broken)} of {len(results)} requests failed: {broken[0]}")
    return {
        "ttft_ms": [(one.first_token_ts - one.start_ts) * 1e3 for one in results],
        "decode_tok_s": [
            (one.total_tokens - 1) / (one.token_timestamps[-1] - one.token_timestamps[0]) for one in results
        ],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):  # it prints as it goes
            answer = asyncio.run(measure(json.loads(line)))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
