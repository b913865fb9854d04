"""aiperf (0.13) as its users run it, one process a job; started with the Python of aiperf's environment.

It wants a tokenizer to make prompts with: one of 256 bytes is built beside its output, so that nothing is downloaded.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def build_tokenizer(folder: Path) -> None:
    tokenizers = importlib.import_module("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    one = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    one.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    one.decoder = tokenizers.decoders.ByteLevel()
    folder.mkdir()
    one.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "config.json").write_text('{"model_type": "gpt2"}')


def measure(job: dict[str, Any]) -> dict[str, Any]:
    count = job["concurrency"] * job["rounds"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tokenizer(folder / "tokenizer")
        subprocess.run(
            [
                Path(sys.executable).with_name("aiperf"), "profile", "-m", "paced", "--tokenizer", folder / "tokenizer",
                "--url", job["url"], "--endpoint-type", "chat", "--streaming", "--use-server-token-count",
                "--concurrency", str(job["concurrency"]), "--request-count", str(count), "--isl", "20",
                "--extra-inputs", f"max_tokens:{job['tokens']}", "--artifact-dir", folder / "out",
                "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
            ],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        lines = (folder / "out" / "profile_export.jsonl").read_text().splitlines()
    metrics = [json.loads(line)["metrics"] for line in lines]
    if len(metrics) != count:
        raise RuntimeError(f"{len(metrics)} of {count} requests succeeded")
    return {
        "ttft_ms": [one["time_to_first_token"]["value"] for one in metrics],
        "decode_tok_s": [1000 / one["inter_token_latency"]["value"] for one in metrics],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measure(json.loads(line))) + "\n")
        sys.stdout.flush()
