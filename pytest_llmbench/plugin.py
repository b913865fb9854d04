"""The pytest plugin: hooks only, readable top to bottom. Imports nothing heavy; logic lives in the other rooms."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import asked, errors, fixtures, flags, options, refusals, terminal
from pytest_llmbench.fixtures import (
    CARDS,
    MARKING,
    SETTINGS,
    SETUPS,
    TERMINAL,
    CellParam,
    bench,
    card,
    cell,
    llmbench_setups,
)
from pytest_llmbench.setups import Setups

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

__all__ = ["bench", "card", "cell", "llmbench_setups"]  # fixtures, found by pytest in this module

MARKER = "llmbench(part): a benchmark of one part of the setup card's plan; one item per cell"


def pytest_addoption(parser: pytest.Parser) -> None:
    flags.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Keep a way to the real terminal, before pytest's capture begins: a benchmark is silent for minutes otherwise."""
    with contextlib.suppress(OSError):  # no standard output at all: no progress either
        descriptor = os.dup(1)
        early_config.stash[terminal.REAL_STDOUT] = descriptor
        early_config.add_cleanup(lambda: os.close(descriptor))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    settings = options.read(config)
    if settings is None:
        return
    # pytest-asyncio asks for an ini value that no bench test needs: ours name their loop themselves.
    warnings.filterwarnings("ignore", message='The configuration option "asyncio_default_fixture_loop_scope"')
    _refuse_without_asyncio(config)
    _refuse_distribution(config)
    _refuse_missing_path(config)
    with _as_usage_error():
        cards = asked.load_cards(settings)
        against = asked.load_against(settings, cards)
        cards = (against.new,) if against is not None else cards
        refusals.check_settings(settings, cards, against)
        config.stash[MARKING] = asked.marking(settings, cards)
    for name, text in asked.marker_names().items():
        config.addinivalue_line("markers", f"{name}: {text}")
    for part in asked.part_names():
        config.addinivalue_line("markers", f"{part}: a benchmark of this part; set by the plugin, for -m {part}")
    config.stash[CARDS] = cards
    config.stash[SETTINGS] = settings
    config.stash[SETUPS] = Setups(settings, against)
    if not config.getoption("collectonly"):
        _switch_on_json_report(config)
    reporter = terminal.Terminal(config)
    config.stash[TERMINAL] = reporter
    config.pluginmanager.register(reporter, "llmbench-terminal")
    config.pluginmanager.register(Signals(), "llmbench-signals")
    config.pluginmanager.register(JsonReportBridge(config.stash[SETUPS]), "llmbench-json-report")


def _refuse_without_asyncio(config: pytest.Config) -> None:
    if not any(map(config.pluginmanager.hasplugin, ("asyncio", "pytest_asyncio", "pytest_asyncio.plugin"))):
        raise pytest.UsageError(
            "--setup needs pytest-asyncio, and it is switched off\n"
            "  remedy: leave out -p no:asyncio; where plugins are not loaded by themselves, add -p pytest_asyncio"
        )


def _refuse_distribution(config: pytest.Config) -> None:
    workers = config.getoption("numprocesses", None)
    if hasattr(config, "workerinput") or workers or config.getoption("dist", "no") not in ("no", None):
        raise pytest.UsageError(
            "--setup cannot run distributed (-n, --dist): the runs would measure each other\n"
            "  remedy: leave out -n, or add -p no:xdist"
        )


def _refuse_missing_path(config: pytest.Config) -> None:
    # "pytest --setup card.json": pytest takes the card for a test path when it looks for its root folder.
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        taken = config.getoption("--llmbench-resume")
        if taken not in {None, "last"}:
            raise pytest.UsageError(
                f"no test path says with which tests to measure; --llmbench-resume took {errors.printable(taken)!r} as its run\n"
                "  remedy: put --llmbench-resume at the end of the line"
            )
        raise pytest.UsageError(
            "--setup says what to measure, but no test path says with which tests\n"
            f"  remedy: pytest bench_suites/ --setup {errors.printable(str(config.getoption('--setup')[0]))}"
            if config.getoption("--setup")
            else "llmbench_setup is set, but no test path is given\n  remedy: pytest bench_suites/"
        )


class _as_usage_error:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, exc: BaseException | None, _tb: object) -> None:
        if isinstance(exc, errors.InputError):
            raise pytest.UsageError(str(exc)) from None


def _switch_on_json_report(config: pytest.Config) -> None:
    """Let pytest-json-report write its report beside ours, unless the user asked for it elsewhere."""
    if not hasattr(config.option, "json_report") or not hasattr(config.option, "tbstyle"):
        return  # switched off with -p no:jsonreport; and it cannot do without the terminal (-p no:terminal)
    if config.option.json_report_file == ".report.json":
        config.option.json_report_file = str(config.stash[SETUPS].folder / "pytest-report.json")
    config.option.json_report = True


def _keep_no_json_report(config: pytest.Config, setups: Setups) -> None:
    """Nothing was measured and nothing is left: a folder with that report alone would look like a run."""
    if getattr(config.option, "json_report_file", None) == str(setups.folder / "pytest-report.json"):
        config.option.json_report_file = ""


# ---- collection -----------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(obj: object) -> None:
    """Bench tests run on the session's event loop, where the server's client lives; no ini of the user's is needed."""
    marks = getattr(obj, "pytestmark", ())
    if inspect.iscoroutinefunction(obj) and any(mark.name == "llmbench" for mark in marks):
        pytest.mark.asyncio(loop_scope="session")(obj)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let ``-m fit`` and ``-m "not fit"`` pick parts, ``-m "not slow and not flaky"`` leave out what is marked."""
    marker = item.get_closest_marker("llmbench")
    if marker is None or SETTINGS not in item.config.stash or not marker.args[:1]:
        return
    item.add_marker(marker.args[0])
    param = fixtures.param_of(item)
    if param is not None:
        with _as_usage_error():
            for name in item.config.stash[MARKING].markers_of(param.loaded.card.id, param.spec.id):
                item.add_marker(name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per cell of the part, for every card."""
    marker = metafunc.definition.get_closest_marker("llmbench")
    if marker is None or "cell" not in metafunc.fixturenames:
        return
    settings = metafunc.config.stash.get(SETTINGS, None)
    if settings is None:  # one item that says why it is skipped
        metafunc.parametrize("cell", [None], indirect=True, ids=[pytest.HIDDEN_PARAM])
        return
    cards: tuple[asked.LoadedCard, ...] = metafunc.config.stash[CARDS]
    part = marker.args[0] if marker.args else None
    if settings.parts is not None and part not in settings.parts:
        cards = ()
    params = [CellParam(loaded, spec) for loaded in cards for spec in loaded.cells if spec.part == part]
    metafunc.parametrize("cell", params, indirect=True, ids=[param.test_id(many=len(cards) > 1) for param in params])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    benches = [item for item in items if item.get_closest_marker("llmbench")]
    if not benches:
        return
    if SETTINGS not in config.stash:
        if len(benches) == len(items):
            raise pytest.UsageError(
                "these are benchmarks of a setup, and no setup is named\n"
                "  remedy: pytest bench_suites/ --setup bench_suites/cards/demo.json"
            )
        for item in benches:
            item.add_marker(pytest.mark.skip(reason="a benchmark; no --setup names what to measure"))
        return
    params = {item: fixtures.param_of(item) for item in benches}
    unplanned = [item for item in benches if params[item] is None and "cell" in getattr(item, "fixturenames", ())]
    if unplanned:  # a part that no card plans is not this session's business
        config.hook.pytest_deselected(items=unplanned)
        items[:] = [item for item in items if item not in unplanned]
        if len(unplanned) == len(benches):
            chosen = config.stash[SETTINGS].parts
            parts = chosen or dict.fromkeys(p for loaded in config.stash[CARDS] for p in loaded.card.plan.parts)
            raise pytest.UsageError(
                f"no test of the given paths measures {', '.join(parts)}\n  remedy: name the suite too, or its folder: bench_suites/"
            )
    loaded_cards: tuple[asked.LoadedCard, ...] = config.stash[CARDS]
    last = (len(loaded_cards), 0)
    items.sort(key=lambda item: fixtures.place_of(p, loaded_cards) if (p := params.get(item)) else last)
    config.stash[SETUPS].promise([p for item in items if (p := params.get(item))])
    setups = config.stash[SETUPS]
    with _as_usage_error():
        setups.refuse_other(loaded_cards)
    done = [item for item in items if (p := params.get(item)) and p.loaded.card.id in setups.done]
    if done:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item not in done]


# ---- running --------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Our own failures are messages, not tracebacks."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, errors.LlmbenchError):
        report.longrepr = terminal.Message(item.location, str(call.excinfo.value))
    elif report.failed and (setups := item.config.stash.get(SETUPS, None)) is not None:
        setups.other_failures = True  # what no benchmark says must not end under a benchmark's exit code
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Write the documents before pytest-json-report writes its own, and let no promised cell end in silence."""
    if (setups := session.config.stash.get(SETUPS, None)) is not None:
        session.exitstatus = setups.finish(int(session.exitstatus))
        if not setups.folder.exists():
            _keep_no_json_report(session.config, setups)
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (setups := config.stash.get(SETUPS, None)) is not None:
        setups.close()


class Signals:
    """SIGTERM and SIGHUP end the session as Ctrl-C does, so that fixtures stop the server and the report is written.

    From the first interruption on further ones are ignored, for they would cut the clean-up short. It takes seconds at
    most: a server that is deaf to TERM is killed.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def pytest_sessionstart(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        self._before = {number: signal.getsignal(number) for number in numbers}
        for number, handler in self._before.items():
            if number != signal.SIGINT and handler is signal.SIG_DFL:
                signal.signal(number, self._as_ctrl_c)

    def _as_ctrl_c(self, _number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)  # asyncio's own while a loop runs: it cancels what is awaited
        self._ignore()
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    def _ignore(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        self._ignore()

    def pytest_unconfigure(self) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # None: set by something that is not Python
                signal.signal(number, handler)


class JsonReportBridge:
    """Our documents ride in pytest-json-report's report."""

    def __init__(self, setups: Setups) -> None:
        self._setups = setups

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        json_report["llmbench"] = self._setups.documents
