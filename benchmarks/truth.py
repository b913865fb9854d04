"""Clients beside each other on a server whose timing is known: TTFT bias and decode error per concurrency.

    python benchmarks/truth.py
    python benchmarks/truth.py --levels 1,16,64,256 --pairs 12 --peer guidellm=/path/to/its/python

Every client measures the same paced server (TTFT 100 ms, 50 tok/s a stream, 64 tokens) and says TTFT and decode by its
own clock. First table: bias = TTFT - 100 ms, decode error = decode / 50 - 1; what the server is late by is in both, for
every client alike. Second table, for ours and the floor, against the server's log of what really left when: first text
stamped - first text written, and decode / decode of the true send times - 1. Ours and the floor are measured in pairs,
one round each, taking turns in who goes first; the difference of a pair is summed up as the median over the pairs, with a
95 % interval by bootstrap (percentiles of the medians of 4,000 resamples of the pairs).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.paced import Pace, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_llmbench.paced import TruthRecord

TTFT_MS, TOK_S, TOKENS = 100.0, 50.0, 64
HERE = Path(__file__).parent / "truth_clients"
PEERS = {path.stem.removeprefix("peer_"): path for path in sorted(HERE.glob("peer_*.py"))}
RESAMPLES = 4000
PEER_ROUNDS = 3


class ClientFailedError(Exception):
    """A client gave up; its own words are on stderr."""


class Client:
    """A client program that takes jobs and gives figures, one line each."""

    def __init__(self, name: str, python: str, script: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def measure(self, **job: Any) -> Round:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ClientFailedError(f"{self.name}: ended with {self._process.wait()} (its own words are above)")
        said = json.loads(answer)
        stamps = zip(said.get("ids", ()), said.get("first_ns", ()), said["decode_tok_s"], strict=False)
        return Round(
            [value - TTFT_MS for value in said["ttft_ms"]],
            [abs(value / TOK_S - 1) * 100 for value in said["decode_tok_s"]],
            {name: (first_ns, decode) for name, first_ns, decode in stamps},
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True)
class Round:
    """TTFT biases in ms and decode errors in %, one a request. stamps: first text (ns) and decode (tok/s) by request id."""

    bias: list[float]
    decode: list[float]
    stamps: dict[str, tuple[int, float]] = field(default_factory=dict)

    def against(self, truth: dict[str, TruthRecord]) -> Round:
        """The same against what really left when."""
        bias, decode = [], []
        for name, (first_ns, rate) in self.stamps.items():
            record = truth[name]
            true_rate = record.decode_tok_s
            assert true_rate is not None
            bias.append((first_ns - record.text_chunks[0].actual_ns) / 1e6)
            decode.append(abs(rate / true_rate - 1) * 100)
        return Round(bias, decode)

    def figures(self) -> dict[str, float]:
        return {
            "TTFT p50": quantile(self.bias, 0.5),
            "TTFT p95": quantile(self.bias, 0.95),
            "decode p50": quantile(self.decode, 0.5),
            "decode max": max(self.decode),
        }


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def together(rounds: Sequence[Round]) -> Round:
    return Round([b for one in rounds for b in one.bias], [d for one in rounds for d in one.decode])


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the 95 % bootstrap interval around it."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def row(name: str, level: int, measured: Round) -> str:
    said = measured.figures()
    return (
        f"| {name} | {level} | {said['TTFT p50']:+.1f} / {said['TTFT p95']:+.1f} | "
        f"{said['decode p50']:.2f} / {said['decode max']:.2f} | {len(measured.bias)} |"
    )


def judged(level: int, ours: Sequence[Round], floor: Sequence[Round], *, by_truth: bool = False) -> Iterator[str]:
    """The goals, on the middle of the interval of the pairs' differences (at 256 against the schedule: of their ratios)."""
    against = "true send times" if by_truth else "schedule"
    for name, most in (("TTFT p50", 0.3), ("TTFT p95", 1.0), ("decode p50", 0.02), ("decode max", 0.02)):
        as_ratio = level > 64 and name.startswith("TTFT") and not by_truth
        if as_ratio:
            combine: Callable[[float, float], float] = lambda a, b: a / b  # noqa: E731
        else:
            combine = lambda a, b: a - b  # noqa: E731
        goal = 1.3 if as_ratio else most
        values = [combine(a.figures()[name], b.figures()[name]) for a, b in zip(ours, floor, strict=True)]
        middle, low, high = interval(values)
        unit = "times" if as_ratio else "ms" if name.startswith("TTFT") else "points"
        word = "met" if middle <= goal else "MISSED"
        yield (
            f"C = {level}, {name} against the {against}: ours {'/' if as_ratio else '-'} floor {middle:+.3f} {unit} "
            f"(95 % {low:+.3f} … {high:+.3f}, {len(values)} pairs), goal at most {goal:g}: {word}"
        )


def measure_level(
    level: int, pairs: int, repeats: int, peers: dict[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """The level's rows of the first and the second table, and what is said about ours and the floor."""
    nonce = iter(range(10**9))

    def go(client: Client, rounds: int = 1) -> Round:
        name = f"{client.name}-{level}-{next(nonce)}"
        return client.measure(url=server.base_url, concurrency=level, tokens=TOKENS, rounds=rounds, nonce=name)

    # A client that takes seconds between connecting and sending is to be measured, not to be cut off.
    pace = Pace(ttft_ms=TTFT_MS, tok_s=TOK_S, keep_alive_s=60)
    with running(pace, args=["-np", str(level), "-c", str(level * 4096)]) as server:
        clients = [Client(name, sys.executable, HERE / f"{name}.py") for name in ("ours", "floor")]
        ours: list[Round] = []
        floor: list[Round] = []
        for client in clients:
            go(client)  # each warms its own path up
        for pair in range(pairs):
            for client in clients if pair % 2 else reversed(clients):
                (ours if client is clients[0] else floor).append(go(client, repeats))
        truth = {record.id: record for record in server.truth() if record.id is not None}
        missing = [name for one in ours + floor for name in one.stamps if name not in truth]
        if missing:
            truth |= {r.id: r for r in server.truth(at_least=len(truth) + len(missing)) if r.id is not None}
        rows = [row("**ours**", level, together(ours)), row("**floor**", level, together(floor))]
        true_ours, true_floor = [one.against(truth) for one in ours], [one.against(truth) for one in floor]
        true_rows = [row("**ours**", level, together(true_ours)), row("**floor**", level, together(true_floor))]
        others = {"httpx_default": (sys.executable, HERE / "httpx_default.py")}
        others |= {name: (python, PEERS[name]) for name, python in peers.items()}
        for name, (python, script) in others.items():
            clients.append(Client(name, python, script))
            try:
                rows.append(row(name, level, go(clients[-1], rounds=PEER_ROUNDS)))
            except ClientFailedError as exc:
                rows.append(f"| {name} | {level} | failed | failed | 0 |")
                print(exc, file=sys.stderr)
        for client in clients:
            client.close()
    words = [*judged(level, ours, floor), *judged(level, true_ours, true_floor, by_truth=True)]
    return rows, true_rows, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="1,16,64,256", help="concurrencies (default 1,16,64,256)")
    parser.add_argument("--pairs", type=int, default=12, help="interleaved pairs of ours and floor (default 12)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON",
        help=f"a peer ({', '.join(PEERS) or 'none here'}) and the Python of the environment it is installed in",
    )  # fmt: skip
    wishes = parser.parse_args()
    peers = dict(one.partition("=")[::2] for one in wishes.peer)
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peer {', '.join(sorted(unknown))}: known are {', '.join(PEERS)}")
    began = time.monotonic()
    print(f"TTFT true = {TTFT_MS:g} ms, {TOK_S:g} tok/s a stream, {TOKENS} tokens\n")
    print("| client | C | TTFT bias p50 / p95 (ms) | decode error p50 / max (%) | requests |\n|---|---|---|---|---|")
    said, true_rows = [], []
    for level in map(int, wishes.levels.split(",")):
        try:
            rows, more_rows, words = measure_level(level, wishes.pairs, 2 if level == 1 else 1, peers)
        except ClientFailedError as exc:
            raise SystemExit(str(exc)) from None
        print("\n".join(rows), flush=True)
        said += words
        true_rows += more_rows
    print("\nagainst what really left when\n")
    print(
        "| client | C | first text stamped late p50 / p95 (ms) | decode error p50 / max (%) | requests |\n|---|---|---|---|---|"
    )
    print("\n".join(true_rows))
    print("\n" + "\n".join(said))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
