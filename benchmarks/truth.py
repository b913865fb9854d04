"""Clients beside each other on a server whose timing is known: TTFT bias and decode error per concurrency.

    python benchmarks/truth.py
    python benchmarks/truth.py --levels 1,16,64,256 --pairs 12 --peer guidellm=/path/to/its/python

Every client measures the same paced server (TTFT 100 ms, 50 tok/s a stream, 64 tokens) and says TTFT and decode by its
own clock; each job begins once the server has written its log of the one before. First table: bias = TTFT - 100 ms,
decode error = decode / 50 - 1; what the server is late by is in both, for every client alike. Second table, for ours and
the floor, against the server's log of what really left when: first text stamped - first text written, and decode /
decode of the true send times - 1. p50 and p95 are over all requests; max is an extreme value, which grows with the
number of requests, so it is the median over rounds of equally many requests.

Goals: ours and the floor are measured in pairs, one round each of equally many requests, taking turns in who goes first.
A pair's difference (above C = 64, of TTFT: ratio) is summed up as the median over the pairs with a 95 % interval by
bootstrap (percentiles of the medians of 4,000 resamples of the pairs). A goal is met where the whole interval meets it,
not met where none of it does, and else not shown. Peers are not measured in pairs: better or not is said without interval.
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
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.paced import Pace, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.paced import PacedProcess, TruthRecord

TTFT_MS, TOK_S, TOKENS = 100.0, 50.0, 64
HERE = Path(__file__).parent / "truth_clients"
PEERS = {path.stem.removeprefix("peer_"): path for path in sorted(HERE.glob("peer_*.py"))}
RESAMPLES = 4000
PEER_ROUNDS = 3
FEWEST_PAIRS = 6  # below, the interval of a median does not reach 95 %
FIGURES = {"TTFT p50": 0.3, "TTFT p95": 1.0, "decode p50": 0.02, "decode max": 0.02}
"""How far ours may lie above the floor: ms, and points of a per cent."""
RATIO_ABOVE, RATIO = 64, 1.3


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
        if None in said["decode_tok_s"]:
            raise ClientFailedError(f"{self.name}: a whole answer came in one read: this machine is too busy to tell")
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


def split(measured: Round, size: int) -> list[Round]:
    """Rounds of that many requests; a rest is left out."""
    ends = range(size, len(measured.bias) + 1, size)
    return [Round(measured.bias[end - size : end], measured.decode[end - size : end]) for end in ends]


def summed_up(rounds: Sequence[Round]) -> dict[str, float]:
    """p50, p95 over all requests, max as the median of the rounds' (each of equally many requests)."""
    pooled = Round([b for one in rounds for b in one.bias], [d for one in rounds for d in one.decode])
    return pooled.figures() | {"decode max": statistics.median(max(one.decode) for one in rounds)}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the 95 % bootstrap interval around it."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def row(name: str, level: int, rounds: Sequence[Round]) -> str:
    said = summed_up(rounds)
    return (
        f"| {name} | {level} | {said['TTFT p50']:+.2f} / {said['TTFT p95']:+.2f} | "
        f"{said['decode p50']:.3f} / {said['decode max']:.3f} | {len(rounds)} x {len(rounds[0].bias)} |"
    )


@dataclass(frozen=True)
class Goal:
    """One goal of one level. middle, low, high: what the pairs say of ours against the floor; most: what is allowed."""

    level: int
    figure: str
    against: str
    unit: str
    most: float
    middle: float
    low: float
    high: float
    pairs: int
    requests: int

    @property
    def verdict(self) -> str:
        if self.pairs < FEWEST_PAIRS:
            return f"not shown ({FEWEST_PAIRS} pairs are needed)"
        if self.high <= self.most:
            return "met"
        if self.low > self.most:
            return "not met"
        return f"not shown (the middle {'meets' if self.middle <= self.most else 'misses'} it)"

    def line(self) -> str:
        sign = "/" if self.unit == "times" else "-"
        plus = "" if self.unit == "times" else "+"
        return (
            f"{self.verdict}: C = {self.level}, {self.figure} against the {self.against}: ours {sign} floor "
            f"{self.middle:{plus}.3f} ({self.low:{plus}.3f} … {self.high:{plus}.3f}), goal at most {self.most:g} {self.unit} "
            f"({self.pairs} pairs of {self.requests} requests each)"
        )


def judged(level: int, ours: Sequence[Round], floor: Sequence[Round], against: str) -> Iterator[Goal]:
    """The goals of a level."""
    for figure, most in FIGURES.items():
        pairs = [(a.figures()[figure], b.figures()[figure]) for a, b in zip(ours, floor, strict=True)]
        if level > RATIO_ABOVE and figure.startswith("TTFT"):
            values, unit, most = [a / b for a, b in pairs], "times", RATIO  # noqa: PLW2901
        else:
            values, unit = [a - b for a, b in pairs], "ms" if figure.startswith("TTFT") else "points"
        yield Goal(level, figure, against, unit, most, *interval(values), len(pairs), len(ours[0].bias))


def beside(level: int, name: str, ours: Sequence[Round], theirs: Sequence[Round]) -> str:
    """Where ours is better than a peer, and where it is not."""
    mine, other = summed_up(ours), summed_up(theirs)
    worse = [
        f"{figure} ({mine[figure]:+.3f}, theirs {other[figure]:+.3f})"
        for figure in FIGURES
        if mine[figure] > other[figure]
    ]
    return f"C = {level}, {name}: " + (
        f"ours is worse in {', '.join(worse)}" if worse else "ours is at least as good in all four"
    )


def rest(server: PacedProcess) -> None:
    """Return when the server has nothing left to do: 20 ms after a round it writes its log, a second at C = 256."""
    time.sleep(0.1)
    with urllib.request.urlopen(f"{server.base_url}/health", timeout=60) as answer:
        answer.read()


@dataclass
class Said:
    """What a run says: rows of the two tables, goals, and how ours stands beside the peers."""

    rows: list[str] = field(default_factory=list)
    true_rows: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)


def measure_level(level: int, pairs: int, repeats: int, peers: dict[str, str], said: Said) -> None:
    """Measure one level."""
    nonce = iter(range(10**9))

    def go(client: Client, rounds: int = 1) -> Round:
        rest(server)
        name = f"{client.name}-{level}-{next(nonce)}"
        return client.measure(url=server.base_url, concurrency=level, tokens=TOKENS, rounds=rounds, nonce=name)

    # A client that takes seconds between connecting and sending is to be measured, not to be cut off.
    pace = Pace(ttft_ms=TTFT_MS, tok_s=TOK_S, keep_alive_s=60)
    with running(pace, args=["-np", str(level), "-c", str(level * 4096)]) as server, ExitStack() as stack:

        def start(name: str, python: str, script: Path) -> Client:
            client = Client(name, python, script)
            stack.callback(client.close)
            return client

        clients = [start(name, sys.executable, HERE / f"{name}.py") for name in ("ours", "floor")]
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
        said.rows += [row("**ours**", level, ours), row("**floor**", level, floor)]
        true_ours, true_floor = [one.against(truth) for one in ours], [one.against(truth) for one in floor]
        said.true_rows += [row("**ours**", level, true_ours), row("**floor**", level, true_floor)]
        said.goals += judged(level, ours, floor, "schedule")
        said.goals += judged(level, true_ours, true_floor, "true send times")
        others = {"httpx_default": (sys.executable, HERE / "httpx_default.py")}
        others |= {name: (python, PEERS[name]) for name, python in peers.items()}
        for name, (python, script) in others.items():
            try:
                theirs = split(go(start(name, python, script), rounds=PEER_ROUNDS * repeats), level * repeats)
            except ClientFailedError as exc:
                said.rows.append(f"| {name} | {level} | failed | failed | 0 |")
                print(exc, file=sys.stderr)
            else:
                said.rows.append(row(name, level, theirs))
                said.peers.append(beside(level, name, ours, theirs))


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
    print(
        "| client | C | TTFT bias p50 / p95 (ms) | decode error p50 / max (%) | rounds x requests |\n|---|---|---|---|---|"
    )
    said = Said()
    for level in map(int, wishes.levels.split(",")):
        shown = len(said.rows)
        try:
            measure_level(level, wishes.pairs, 2 if level == 1 else 1, peers, said)
        except ClientFailedError as exc:
            said.rows.append(f"| {exc} | {level} | failed | failed | 0 |")
        print("\n".join(said.rows[shown:]), flush=True)
    print("\nagainst what really left when\n")
    print("| client | C | first text stamped late p50 / p95 (ms) | decode error p50 / max (%) | rounds x requests |")
    print("\n".join(["|---|---|---|---|---|", *said.true_rows]))
    for against in ("schedule", "true send times"):
        goals = [goal for goal in said.goals if goal.against == against]
        print(f"\nGoals against the {against} ({sum(goal.verdict == 'met' for goal in goals)} of {len(goals)} met):")
        print("\n".join(f"- {goal.line()}" for goal in goals))
    print("\nBetter than every peer (no pairs, so without interval):")
    print("\n".join(f"- {line}" for line in said.peers))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
