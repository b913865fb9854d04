"""Is this machine's client path good enough for what is to be measured? ``python -m pytest_llmbench.selfcheck``.

A paced server sends tokens on an absolute schedule and logs when each really left, on the clock that the client stamps
arrivals with. So what the client adds is seen by itself, request by request:

- **TTFT bias** (ms): (t_first - t_send) of the client, less (first text written - request received) of the server. It
  is the sum of two ways: the request's (sent → received, which holds the time that the server was busy with other
  requests) and the first text's (written → stamped). The latter is the client's own doing and is the verdict's.
- **decode error** (%): the client's decode against the same definition on the true send times of the same chunks.
- **send spread** (ms): last t_send - first t_send of a burst. **lag** (ms): how late the reading thread woke up.

The server's own lateness (it is late on a busy machine) is in neither.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.client.http import send_spread_ms
from pytest_llmbench.errors import LlmbenchError
from pytest_llmbench.measure import figures
from pytest_llmbench.paced import Pace, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.paced import PacedProcess, TruthRecord
    from pytest_llmbench.records import RequestTrace

LEVELS = (1, 4, 16, 64)
TTFT_MS, TOK_S, TOKENS = 100.0, 50.0, 48
ROUNDS_OF_ONE, ROUNDS = 6, 3  # a round of one request says little
LAG_BOUND_MS = 50.0
STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """One request: what the client read, less what was true."""

    ttft_bias_ms: float
    request_way_ms: float
    text_way_ms: float
    decode_error: float


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency. Times in ms, decode errors in %; ``lag_max_ms`` of all rounds, ``send_spread_ms`` their median."""

    concurrency: int
    requests: int
    ttft_bias_p50_ms: float
    ttft_bias_p95_ms: float
    text_way_p50_ms: float
    text_way_p95_ms: float
    decode_error_p50_pct: float
    decode_error_max_pct: float
    send_spread_ms: float
    lag_max_ms: float

    @property
    def verdict(self) -> str:
        """What can be measured at this level, in a sentence."""
        to_ms, to_pct = round_up(self.text_way_p95_ms), round_up(self.decode_error_max_pct)
        if self.lag_max_ms > LAG_BOUND_MS:
            return (
                f"not good enough now: the client woke up {self.lag_max_ms:.0f} ms late (bound {LAG_BOUND_MS:.0f} ms). "
                "Is something else running?"
            )
        return f"good enough for TTFT to {to_ms:g} ms and decode to {to_pct:g} %."


def round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten; at least 0.01."""
    if value <= 0.01:
        return 0.01
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (*STEPS, 10.0) if value <= step * power * (1 + 1e-9))


def quantile(values: Sequence[float], share: float) -> float:
    """The value at rank ceil(share * n): a value that was seen, not one in between."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def read(trace: RequestTrace, truth: TruthRecord) -> Reading:
    """Compare one request with its truth. Raises LlmbenchError where it was not answered whole."""
    answer = parse(trace)
    texts = truth.text_chunks
    rate, _ = figures.decode_tok_s(answer)
    if answer.error or not answer.events or rate is None or trace.t_send_ns is None or truth.decode_tok_s is None:
        raise LlmbenchError(f"self-check: {trace.request_id} was not answered: {answer.error or 'too few tokens'}")
    request_way = (truth.t_received_ns - trace.t_send_ns) / 1e6
    text_way = (answer.events[0].t_ns - texts[0].actual_ns) / 1e6
    return Reading(request_way + text_way, request_way, text_way, rate / truth.decode_tok_s - 1)


def summarise(concurrency: int, readings: Sequence[Reading], spreads: Sequence[float], lag_max_ms: float) -> Level:
    bias, way = [one.ttft_bias_ms for one in readings], [one.text_way_ms for one in readings]
    decode = [abs(one.decode_error) * 100 for one in readings]
    return Level(
        concurrency, len(readings), quantile(bias, 0.5), quantile(bias, 0.95), quantile(way, 0.5), quantile(way, 0.95),
        quantile(decode, 0.5), max(decode), statistics.median(spreads), lag_max_ms,
    )  # fmt: skip


async def measure(server: PacedProcess, concurrency: int, rounds: int) -> Level:
    """Run one level, as the runner measures: warmed up, no garbage collection while a round runs."""
    client = LlmClient(server.base_url, connections=concurrency, silence_s=60.0)
    readings: list[Reading] = []
    spreads, lags = [], []
    try:
        await client.warm_up()
        for number in range(rounds):
            ids = [f"selfcheck/{concurrency}/{number}/{n}" for n in range(concurrency)]
            gc.collect()
            gc.disable()
            try:
                traces = await client.burst([_body(one) for one in ids], ids)
            finally:
                gc.enable()
            spreads.append(send_spread_ms(traces) or 0.0)
            lags.append(client.lag_max_ms)
            readings += _compare(traces, server)
    finally:
        await client.aclose()
    return summarise(concurrency, readings, spreads, max(lags))


def _compare(traces: Sequence[RequestTrace], server: PacedProcess) -> list[Reading]:
    wanted = {trace.request_id for trace in traces}
    count = len(wanted)
    while True:
        records = server.truth(count)
        truth = {record.id: record for record in records if record.id in wanted}
        if len(truth) == len(wanted):
            return [read(trace, truth[trace.request_id]) for trace in traces]
        count = len(records) + 1


def _body(text: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
    }


def run(levels: Sequence[int]) -> Iterator[Level]:
    """Check one level after the other. Raises LlmbenchError, ServerStartError."""
    most = max(levels)
    pace = Pace(ttft_ms=TTFT_MS, tok_s=TOK_S)
    with running(pace, args=["-np", str(most), "-c", str(most * 512)]) as server:
        for concurrency in levels:
            yield asyncio.run(measure(server, concurrency, ROUNDS_OF_ONE if concurrency == 1 else ROUNDS))


HEADER = "   C  TTFT bias p50 / p95 ms  client's part p50 / p95 ms  decode error p50 / max %  send spread ms  lag ms\n"


def line(level: Level) -> str:
    return (
        f"{level.concurrency:4}  {level.ttft_bias_p50_ms:+10.2f} / {level.ttft_bias_p95_ms:+9.2f}  "
        f"{level.text_way_p50_ms:+13.2f} / {level.text_way_p95_ms:+10.2f}  "
        f"{level.decode_error_p50_pct:12.3f} / {level.decode_error_max_pct:9.3f}  "
        f"{level.send_spread_ms:14.2f}  {level.lag_max_ms:6.1f}\n      {level.verdict}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 when every level is good enough to tell, 1 when one is not, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_llmbench.selfcheck", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--levels", type=_levels, default=LEVELS, metavar="C,C,…", help="concurrencies to check (default 1,4,16,64)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead, at the end")
    wishes = parser.parse_args(argv)
    levels = []
    if not wishes.json:
        sys.stdout.write(f"paced server: TTFT {TTFT_MS:g} ms, {TOK_S:g} tok/s a stream, {TOKENS} tokens\n{HEADER}")
    for level in run(wishes.levels):
        levels.append(level)
        sys.stdout.write("" if wishes.json else line(level) + "\n")
        sys.stdout.flush()
    if wishes.json:
        sys.stdout.write(json.dumps([asdict(level) | {"verdict": level.verdict} for level in levels], indent=2) + "\n")
    return 1 if any(level.lag_max_ms > LAG_BOUND_MS for level in levels) else 0


def _levels(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(int(one) for one in text.split(","))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers above zero with commas between them, such as 1,16,256")
    return levels


if __name__ == "__main__":
    sys.exit(main())
