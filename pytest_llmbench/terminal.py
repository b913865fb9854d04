"""What a person sees: one header line, progress on long steps, and a table at the end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr  # pytest has no public name for them

from pytest_llmbench.fixtures import CARDS, SETUPS

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.records import Attempt, CellSpec

_HEARTBEAT_S = {True: 0.5, False: 15.0}  # on a terminal a line that moves; in a log a line now and then


class Message(TerminalRepr):
    """A failure that is its own text. reprcrash makes pytest's short summary and JUnit show its first line."""

    def __init__(self, location: tuple[str, int | None, str], text: str) -> None:
        path, line, _ = location
        self.text = text
        self.reprcrash = ReprFileLocation(path, (line or 0) + 1, text.splitlines()[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        for line in self.text.splitlines():
            tw.line(line, red=not line.startswith(" "))


class Terminal:
    """Header, live progress and summary. Progress goes around pytest's capture, to the real terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._beat: _Heartbeat | None = None

    # ---- hooks ----

    def pytest_report_header(self) -> list[str]:
        return [f"llmbench: {_plan_words(loaded.card, loaded.cells)}" for loaded in self._config.stash[CARDS]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Any:
        self._quiet()
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for folder, table in self._config.stash[SETUPS].tables:
            terminalreporter.section("llmbench", sep="-")
            for line in table.splitlines():
                terminalreporter.write_line(line)
            terminalreporter.write_line("")
            terminalreporter.write_line(f"report: {folder / 'report.json'}   table: {folder / 'table.md'}")

    # ---- progress (runner.Progress) ----

    def phase(self, text: str) -> None:
        self._show(text, None)

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None:
        which = "warm-up" if run == 0 else f"run {run} of {spec.runs}"
        again = f", attempt {attempt} ({reason})" if attempt > 1 and run else ""
        self._show(f"{spec.id} {which}{again}", client)

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None:
        which = "warm-up" if attempt.run == 0 else f"run {attempt.run} of {spec.runs}"
        if attempt.error is not None:
            said = attempt.error.splitlines()[0]
        else:
            from pytest_llmbench.measure import PARTS  # noqa: PLC0415
            from pytest_llmbench.verdict import shown  # noqa: PLC0415

            own = next(f for f in attempt.figures if f.name == PARTS[spec.part].headline)
            value = shown(own.value, own.unit) if own.value is not None else "no figure"
            said = value if own.valid else f"{value}, invalid: {own.reasons[0] if own.reasons else 'no value'}"
        seconds = (attempt.t_end_ns - attempt.t_start_ns) / 1e9
        self._quiet()
        self._line(f"  {spec.id} {which}: {said} ({seconds:.1f} s)")

    # ---- writing ----

    def _show(self, text: str, client: LlmClient | None) -> None:
        self._quiet()
        reporter = self._reporter()
        if reporter is None or reporter.verbosity < 0:
            return
        self._beat = _Heartbeat(self, text, client)
        self._beat.start()

    def _quiet(self) -> None:
        if self._beat is not None:
            self._beat.stop()
            self._beat = None

    def _line(self, text: str) -> None:
        reporter = self._reporter()
        if reporter is not None and reporter.verbosity >= 0:
            reporter.ensure_newline()
            reporter.write_line(text)
            reporter.flush()

    def _reporter(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")


class _Heartbeat(threading.Thread):
    """Says now and then what is going on. A thread, because the event loop stands still between tests.

    It reads one counter; nothing is parsed while a run is measured.
    """

    def __init__(self, terminal: Terminal, text: str, client: LlmClient | None) -> None:
        super().__init__(name="llmbench-progress", daemon=True)
        self._terminal, self._text, self._client = terminal, text, client
        self._reporter = terminal._reporter()  # noqa: SLF001 - one room
        self._on_terminal = (
            self._reporter.isatty() if callable(getattr(self._reporter, "isatty", None)) else self._reporter.isatty
        )
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._chunks_before = client.chunks_received if client else 0

    def run(self) -> None:
        shown = False
        while not self._ended.wait(_HEARTBEAT_S[self._on_terminal]):
            line = f"  {self._text}: {time.monotonic() - self._began:.0f} s{self._received()}"
            if self._on_terminal:
                self._reporter.rewrite(line, erase=True)
                shown = True
            else:
                self._terminal._line(line)  # noqa: SLF001
        if shown:
            self._reporter.rewrite("", erase=True)

    def _received(self) -> str:
        if self._client is None:
            return ""
        count = self._client.chunks_received - self._chunks_before
        return f", {count} chunks received" if count else ", reading the prompt"

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _plan_words(card: Any, cells: Any) -> str:
    runs, requests = sum(c.runs for c in cells), sum(c.requests for c in cells)
    return f"{card.id} ({card.model.name}, {card.engine.kind}): {', '.join(card.plan.parts)}; {runs} runs, {requests} requests"
