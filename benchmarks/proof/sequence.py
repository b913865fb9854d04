"""The gate's whole life on a real server: baseline, unchanged, slower, marked, recovered. Some ten minutes on a quiet machine.

    python benchmarks/proof/sequence.py OUT [--card CARD] [--slow 0.2] [--baseline 10]

Sessions of ``pytest bench_suites/`` with a small plan, in the new folder OUT. Slower means that its servers are
stopped for that share of the time, from their start on, from outside (``slower.py``). Only sessions that started 30 minutes
apart count for a baseline; so that nobody waits for five hours, each session's report is dated back when it is over
(an hour from one to the next, all before today's) and the history rebuilt from the reports: the values stay as measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DEMO = REPOSITORY / "bench_suites" / "cards" / "demo.json"
LAUNCHER = (str(Path(sys.executable).with_name("llmbench")),)
PLAN = {
    "parts": ["decode", "prefill"],
    "decode": {"prompts": ["code"], "runs": 2, "warmups": 1, "max_tokens": 48, "ignore_eos": True},
    "prefill": {"depths": [512], "runs": 2, "ignore_eos": True},
}


def prepare(out: Path, base: Path) -> Path:
    out.mkdir(parents=True)
    (out / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    card = json.loads(base.read_text(encoding="utf-8"))
    for key in ("$schema", "thresholds", "notes"):
        card.pop(key, None)
    card |= {"id": "gate", "plan": PLAN}
    path = out / "gate.json"
    path.write_text(json.dumps(card, indent=2), encoding="utf-8")
    return path


class Slower:
    """Slows every server that a process starts, while the block runs."""

    def __init__(self, share: float) -> None:
        self.share, self._over, self._stoppers = share, threading.Event(), dict[int, subprocess.Popen[bytes]]()

    def watch(self, parent: int) -> None:
        while self.share and not self._over.wait(0.05):
            try:
                children = psutil.Process(parent).children(recursive=True)
            except psutil.NoSuchProcess:
                return
            for child in children:
                if child.pid not in self._stoppers and "llama-server" in _name(child):
                    command = [sys.executable, str(HERE / "slower.py"), str(child.pid), str(self.share)]
                    self._stoppers[child.pid] = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        self._over.set()
        for stopper in self._stoppers.values():
            stopper.terminate()
            stopper.wait()


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def session(out: Path, card: Path, nth: int, first: datetime, share: float, title: str, extra: list[str]) -> int:
    """One session; its exit code. Its report is dated ``nth`` hours after the first afterwards."""
    print(f"\n===== {title}", flush=True)
    suites = REPOSITORY / "bench_suites"
    command = [sys.executable, "-m", "pytest", str(suites / "test_decode.py"), str(suites / "test_prefill.py")]
    command += ["--rootdir", str(out), "-c", str(out / "pytest.ini"), "-q", "-rA", "--setup", str(card), *extra]
    known = set(_reports(out))
    running = subprocess.Popen(command, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    slower = Slower(share)
    thread = threading.Thread(target=slower.watch, args=(running.pid,))
    thread.start()
    told, _ = running.communicate()
    slower.end()
    thread.join()
    (out / f"session-{nth:02}.txt").write_text(told, encoding="utf-8")
    print(
        told
        if nth == 1
        else told[told.find("= FAILURES") :]
        if "= FAILURES" in told
        else told[told.rfind("\nDecode **") :]
    )
    print(f"exit code {running.returncode}", flush=True)
    (report,) = set(_reports(out)) - known
    document = json.loads(report.read_text(encoding="utf-8"))
    document["started"] = (first + timedelta(hours=nth)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    report.write_text(json.dumps(document), encoding="utf-8")
    llmbench(out, "history", "rebuild", quiet=True)
    return running.returncode


def _reports(out: Path) -> list[Path]:
    return list(out.glob(".llmbench/runs/*/*/report.json"))


def llmbench(out: Path, *words: str, quiet: bool = False) -> None:
    done = subprocess.run([*LAUNCHER, *words], cwd=out, capture_output=True, text=True, check=False)
    if not quiet or done.returncode:
        print(f"\n$ llmbench {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description="The gate's whole life on a real server.")
    options.add_argument("out", type=Path, help="a new folder")
    options.add_argument("--card", type=Path, default=DEMO, help="the setup; its plan is replaced (the demo card)")
    options.add_argument(
        "--slow", type=float, default=0.2, help="share of the time that a slowed server is stopped (0.2)"
    )
    options.add_argument("--baseline", type=int, default=10, help="sessions of the baseline (10)")
    options.add_argument("--unchanged", type=int, default=3)
    options.add_argument("--pytest", default="", help="more flags of the sessions, in one word")
    asked = options.parse_args()
    out = asked.out.resolve()
    card = prepare(out, asked.card)
    plan = [("baseline", 0.0)] * asked.baseline + [("unchanged", 0.0)] * asked.unchanged
    plan += [("slower", asked.slow)] * 3 + [("slower and marked", asked.slow)] + [("recovered", 0.0)] * 3
    first = datetime.now(UTC) - timedelta(hours=len(plan) + 2)
    said = []
    for nth, (title, share) in enumerate(plan, 1):
        if title == "slower and marked":
            llmbench(out, "marks")
            llmbench(out, "marks", "accept", "--all", "--reason", "slowed on purpose", "--author", "sequence.py")
        code = session(out, card, nth, first, share, f"session {nth}: {title}", asked.pytest.split())
        said.append(f"{nth} {title}: exit code {code}")
    llmbench(out, "marks")
    llmbench(out, "marks", "remove", "--all")
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
