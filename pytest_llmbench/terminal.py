"""What a person sees: one header line, progress on long steps, and a table at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr  # pytest has no public name for them

from pytest_llmbench.errors import counted, printable
from pytest_llmbench.fixtures import CARDS, MARKING, SETUPS

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.records import Attempt, CellSpec

REAL_STDOUT: pytest.StashKey[int] = pytest.StashKey()
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
        self._screen: Screen | None = None
        self._warm_up_error: str | None = None

    def pytest_sessionstart(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        descriptor = self._config.stash.get(REAL_STDOUT, None)
        if reporter is not None and descriptor is not None and reporter.verbosity >= 0:
            self._screen = Screen(descriptor, reporter)

    # ---- hooks ----

    def pytest_report_header(self) -> list[str]:
        against = self._config.stash[SETUPS].against
        lines = [_plan_words(loaded.card, loaded.cells) for loaded in self._config.stash[CARDS]]
        return [printable(f"llmbench: {line}") for line in (*lines, *(against.header if against else ()))]

    def pytest_report_collectionfinish(self) -> list[str]:
        setups = self._config.stash[SETUPS]
        return [
            printable(f"llmbench: {card}: all of it was measured in {setups.settings.resume}; left out")
            for card in sorted(setups.done)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Any:
        self._quiet()
        return (yield)

    def pytest_keyboard_interrupt(self) -> None:
        self._quiet()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for folder, table in self._config.stash[SETUPS].tables:
            terminalreporter.section("llmbench", sep="-")
            for line in table.splitlines():
                terminalreporter.write_line(line)
            terminalreporter.write_line("")
            if (folder / "table.md").exists():  # a full disk: said below
                said = f"report: {folder / 'report.json'}   table: {folder / 'table.md'}"
                terminalreporter.write_line(printable(said))
        for said in self._config.stash[SETUPS].not_written:
            terminalreporter.write_line(printable(said), red=True)
        for card, count in self._config.stash[SETUPS].not_reached.items():
            terminalreporter.write_line(
                f"cut short: {card}, {counted(count, 'cell')} to measure; the same command with "
                f"--llmbench-resume {self._config.stash[SETUPS].session} goes on"
            )
        for card, name, why_not in self._config.stash[SETUPS].saved:
            if why_not is None:
                terminalreporter.write_line(f'saved: {card} as "{name}"')
            else:
                terminalreporter.write_line(f'NOT saved: {card} as "{name}": {printable(why_not)}', red=True)
        self._say_verdict(terminalreporter)

    def _say_verdict(self, reporter: pytest.TerminalReporter) -> None:
        """A line for every figure that moved, what the history proposes, and where it stands."""
        setups = self._config.stash[SETUPS]
        for line in setups.forgotten:
            reporter.write_line(printable(line, lines=True), red=True)
        for line in self._config.stash[MARKING].covers_nothing():
            reporter.write_line(printable(line), yellow=True)
        found = setups.verdict
        if found is None:
            return
        lines = list(found.summary)
        if setups.accepted:
            lines.append(
                f"new baselines begin with this session: {setups.settings.accept} ({', '.join(setups.accepted)})"
            )
        for card in found.cards:
            for cell in card.cells:
                for proposal in cell.proposals:
                    what = f"{proposal.mark} mark {'proposed' if proposal.action == 'add' else 'no longer needed'}"
                    lines.append(f"{what} for {cell.id} of {card.card}: {proposal.lines[0]} (see: llmbench marks)")
            if card.remeasured_minutes:
                lines.append(f"measured again on fresh servers: {card.remeasured_minutes:.1f} min")
            if card.canary:
                lines.append(f"this session was slowed on purpose: {card.canary}")
            if card.last_canary:
                lines.append(card.last_canary)
        failed = f"{found.category}, exit code {found.exit_code}" if found.category else "nothing failed"
        if found.interrupted:
            failed = "interrupted, nothing is decided"
        if setups.verdict_path.exists():
            lines.append(f"verdict: {setups.verdict_path} ({failed})")
        for line in lines:
            reporter.write_line(printable(line))

    # ---- progress (runner.Progress) ----

    def phase(self, text: str) -> None:
        self._show(text, None)

    def note(self, text: str) -> None:
        self._quiet()
        if self._screen is not None:
            self._screen.line(f"  {text}")

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None:
        which = "warm-up" if run == 0 else f"run {run} of {spec.runs}"
        again = f", attempt {attempt}" if attempt > 1 and run else ""
        if again and self._screen is not None:  # once; what moves or comes back every few seconds stays short
            self._quiet()
            self._screen.line(f"  {spec.id} {which}: once more, for {reason.splitlines()[0]}")
        self._show(f"{spec.id} {which}{again}", client)

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None:
        which = "warm-up" if attempt.run == 0 else f"run {attempt.run} of {spec.runs}"
        if attempt.error is not None:
            said = attempt.error.splitlines()[0]
            if attempt.run and attempt.error == self._warm_up_error:
                said = "not made, for the warm-up broke off"
            elif not attempt.run:
                self._warm_up_error = attempt.error
        else:
            from pytest_llmbench.measure import PARTS  # noqa: PLC0415
            from pytest_llmbench.verdict import shown  # noqa: PLC0415

            own = next(f for f in attempt.figures if f.name == PARTS[spec.part].headline)
            value = shown(own.value, own.unit) if own.value is not None else "no figure"
            disturbed = ", disturbed" if attempt.guard == "disturbed" else ""
            said = (
                f"{value}{disturbed}"
                if own.valid
                else f"{value}, invalid: {own.reasons[0] if own.reasons else 'no value'}"
            )
        seconds = (attempt.t_end_ns - attempt.t_start_ns) / 1e9
        self._quiet()
        if self._screen is not None:
            self._screen.line(f"  {spec.id} {which}: {said} ({seconds:.1f} s)")

    # ---- writing ----

    def _show(self, text: str, client: LlmClient | None) -> None:
        self._quiet()
        if self._screen is not None:
            self._beat = _Heartbeat(self._screen, text, client)
            self._beat.start()

    def _quiet(self) -> None:
        if self._beat is not None:
            self._beat.stop()
            self._beat = None


class Screen:
    """The real terminal (or log) behind pytest's capture: a copy of its descriptor, taken before the capture began.

    Lines are whole: pytest's own line of dots is ended first.
    """

    def __init__(self, descriptor: int, reporter: Any) -> None:
        self._descriptor, self._reporter = descriptor, reporter
        self.is_terminal = os.isatty(descriptor)
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        """Write a line for good."""
        shown = printable(text)
        self._write(f"\r\x1b[K{shown}\n" if self.is_terminal else f"{shown}\n")

    def passing(self, text: str) -> None:
        """Write a line that the next one replaces; on a terminal only."""
        if self.is_terminal:
            self._write(f"\r\x1b[K{printable(text)[: shutil.get_terminal_size().columns - 1]}")

    def _write(self, text: str) -> None:
        with self._lock:
            if self._reporter.currentfspath:  # pytest is in the middle of a line of dots
                text = f"\n{text}"
                self._reporter.currentfspath = None
            data = text.encode()
            with contextlib.suppress(OSError):  # a closed terminal must not end a measurement
                while data:
                    data = data[os.write(self._descriptor, data) :]


class _Heartbeat(threading.Thread):
    """Says now and then what is going on. A thread, because the event loop stands still between tests.

    It reads one counter; nothing is parsed while a run is measured.
    """

    def __init__(self, screen: Screen, text: str, client: LlmClient | None) -> None:
        super().__init__(name="llmbench-progress", daemon=True)
        self._screen, self._text, self._client = screen, text, client
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._chunks_before = client.chunks_received if client else 0

    def run(self) -> None:
        while not self._ended.wait(_HEARTBEAT_S[self._screen.is_terminal]):
            line = f"  {self._text}: {time.monotonic() - self._began:.0f} s{self._received()}"
            if self._screen.is_terminal:
                self._screen.passing(line)
            else:
                self._screen.line(line)

    def _received(self) -> str:
        if self._client is None:
            return ""
        count = self._client.chunks_received - self._chunks_before
        return f", {count} chunks received" if count else ", reading the prompt"

    def stop(self) -> None:
        self._ended.set()
        self.join()
        self._screen.passing("")


def _plan_words(card: Any, cells: Any) -> str:
    runs, requests = sum(c.runs for c in cells), sum(c.requests for c in cells)
    return f"{card.id} ({card.model.name}, {card.engine.kind}): {', '.join(card.plan.parts)}; {counted(runs, 'run')}, {counted(requests, 'request')}"
