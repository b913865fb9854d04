"""guidellm (0.8) as its users run it, one process a job; started with the Python of guidellm's environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def measure(job: dict[str, Any]) -> dict[str, Any]:
    count = job["concurrency"] * job["rounds"]
    with tempfile.TemporaryDirectory() as folder:
        prompts, out = Path(folder, "prompts.json"), Path(folder, "out.json")
        prompts.write_text(json.dumps([{"prompt": f"{job['nonce']} {n}"} for n in range(count)]))
        subprocess.run(
            [
                Path(sys.executable).with_name("guidellm"), "run",
                "--backend", f"kind=openai_http,target={job['url']},model=paced,max_tokens={job['tokens']}",
                "--profile", f"kind=concurrent,streams={job['concurrency']}",
                "--constraint", f"kind=max_requests,count={count}",
                "--data", f"kind=json_file,path={prompts}",
                "--output", f"kind=json,path={out}",
                "--disable-console",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        requests = json.loads(out.read_text())["benchmarks"][0]["requests"]["successful"]
    if len(requests) != count:
        raise RuntimeError(f"{len(requests)} of {count} requests succeeded")
    return {
        "ttft_ms": [one["time_to_first_token_ms"] for one in requests],
        "decode_tok_s": [1000 / one["inter_token_latency_ms"] for one in requests],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measure(json.loads(line))) + "\n")
        sys.stdout.flush()
