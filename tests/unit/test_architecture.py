"""DESIGN's street, held over the import statements: who may know whom, and who may touch the world."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pytest_llmbench"

# A room is a top-level module or package of ours, or several that are one ("card": the card and what reads it).
# Each may import the rooms named here, and itself; types count. A new room needs a line.
STREET: dict[str, frozenset[str]] = {
    room: frozenset(may.split())
    for room, may in {
        "errors": "",
        "records": "",
        "files": "",
        "canonical": "",
        "figure_kinds": "records",
        "journal": "records",
        "machine": "errors",
        "promises": "errors machine card",
        "watch": "errors records files journal",
        "paced": "errors",
        "card": "errors records canonical",
        "contract": "records",
        "engine": "errors records files card",
        "client": "errors records",
        "prompts": "errors records",
        "measure": "errors records figure_kinds card client prompts",
        "stats": "records figure_kinds",
        "gate": "errors records figure_kinds stats",
        "verdict": "errors records figure_kinds stats gate",
        "history": "errors records files verdict gate canonical",
        "marks": "errors records files card gate",
        "outcomes": "errors records",
        "cli": "errors records files history marks gate slowdown",
        "report": "errors records files figure_kinds journal contract stats verdict",
        "fit_search": "records stats",
        "resume": "errors records journal contract fit_search",
        "selfcheck": "errors records client measure paced",
        "going_on": "records journal contract measure stats fit_search resume",
        "verify": "errors records journal contract client measure stats",
        "servers": "errors records journal engine client watch",
        "runner": "errors records files figure_kinds journal contract engine client prompts measure watch stats servers",
        "control": "errors records card stats measure client watch",
        "wishes": "card resume slowdown",
        "slowdown": "errors",
        "against": "errors records figure_kinds contract card measure stats verdict gate history runner wishes",
        "judging": "canonical errors records files figure_kinds stats verdict gate history marks outcomes sameness wishes",
        "sameness": "records journal machine card prompts measure history resume runner",
        "session": "errors records files figure_kinds journal machine promises watch card contract engine client prompts measure "
        "stats verdict history report fit_search resume going_on servers runner wishes judging outcomes sameness control slowdown against gate",
        "bench": "errors records files card client report runner session wishes marks",
        "marking": "records machine card history marks sameness",
        "pytest": "errors records files journal machine card stats verdict history report runner session measure client "
        "watch engine figure_kinds resume bench wishes marks marking outcomes sameness control slowdown against gate",
    }.items()
}
ROOM_OF = {
    "assembly": "session",
    "attempts": "runner",
    "card_args": "card",
    "card_flags": "card",
    "plan": "card",
    "plan_changes": "card",
    "control_gate": "judging",
    "control_side": "session",
    "ending": "session",
    "explaining": "judging",
    "old_side": "session",
    "preparation": "session",
    "plugin": "pytest",
    "flags": "pytest",
    "options": "pytest",
    "fixtures": "pytest",
    "asked": "pytest",
    "refusals": "pytest",
    "setups": "pytest",
    "terminal": "pytest",
}
PYTEST_ONLY = {"flags", "plugin", "options", "fixtures", "terminal"}
# What else comes with the plugin, and so with every run of pytest.
LIGHT = {"errors", "files", "asked", "refusals", "setups"}

# What has a clock, a file, the network, another process, chance, or the environment behind it.
IMPURE = frozenset(
    [
        "time",
        "datetime",
        "os",
        "io",
        "pathlib",
        "shutil",
        "tempfile",
        "glob",
        "socket",
        "ssl",
        "http",
        "urllib",
        "httpx",
        "httpcore",
        "aiohttp",
        "requests",
        "subprocess",
        "signal",
        "asyncio",
        "threading",
        "multiprocessing",
        "random",
        "secrets",
        "uuid",
        "platform",
        "sys",
        "psutil",
        "pynvml",
        "sqlite3",
        "logging",
        "importlib",
        "ctypes",
        "select",
        "selectors",
    ]
)
# What cannot be seen in an import statement.
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})
PURE = (
    "canonical",
    "records",
    "errors",
    "figure_kinds",
    "stats",
    "verdict",
    "contract",
    "card_args",
    "plan",
    "engine",
    "engine.command",
    "card_flags",
    "client.sse",
    "client.parse",
    "report.table",
    "gate",
    "gate.rule",
    "gate.messages",
    "history.keys",
    "history.baselines",
    "marks.evidence",
    "marks.propose",
    "marks.effect",
    "outcomes",
    "outcomes.categories",
    "outcomes.summary",
)
# Counts the tokens of prompts on a running server. Everything else in ``measure`` reads what was recorded.
SENDERS = frozenset({"measure.request"})


@dataclass(frozen=True)
class Import:
    """One imported module. typing_only: under ``if TYPE_CHECKING``."""

    module: str
    typing_only: bool
    line: int


def modules() -> dict[str, Path]:
    """Every module of the package by its name without ``pytest_llmbench.``; the package itself is ``""``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        words = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


MODULES = modules()


def imports(source: str) -> list[Import]:
    """Every import statement, wherever it stands; ``from package import name`` counts as package.name too."""
    tree = ast.parse(source)
    typing_lines = {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.body
        for inner in ast.walk(child)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno in typing_lines, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            ours = [name for name in names if name.removeprefix("pytest_llmbench.") in MODULES]
            bare = [] if ours and node.module == "pytest_llmbench" else [node.module]
            found += [Import(name, node.lineno in typing_lines, node.lineno) for name in (*bare, *ours)]
    return found


IMPORTS = {name: imports(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def room(module: str) -> str:
    top = module.partition(".")[0]
    return ROOM_OF.get(top, top)


READERS = {name for name in MODULES if room(name) == "measure"} - SENDERS


def ours(name: str) -> list[Import]:
    return [
        Import(one.module.removeprefix("pytest_llmbench").lstrip("."), one.typing_only, one.line)
        for one in IMPORTS[name]
        if one.module.split(".")[0] == "pytest_llmbench"
    ]


def outside(name: str) -> list[Import]:
    return [one for one in IMPORTS[name] if one.module.split(".")[0] != "pytest_llmbench"]


def runtime_closure(name: str) -> set[str]:
    """Modules of ours that this one imports, at whatever moment, and what those import.

    Not the package that it lies in: ``client`` offers its sender beside its parser, which does not make the parser impure.
    """
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in seen or one not in MODULES:
            continue
        seen.add(one)
        waiting += [found.module for found in ours(one) if not found.typing_only]
    return seen


def test_the_reader_of_imports_sees_them_all() -> None:
    source = (
        "from typing import TYPE_CHECKING\nimport os.path as p, json\n"
        "if TYPE_CHECKING:\n    from pytest_llmbench.records import Figure\n"
        "def late():\n    from pytest_llmbench import stats, __version__\n    import time\n"
    )
    assert [(one.module, one.typing_only) for one in sorted(imports(source), key=lambda one: one.line)] == [
        ("typing", False),
        ("os.path", False),
        ("json", False),
        ("pytest_llmbench.records", True),
        ("pytest_llmbench.stats", False),
        ("time", False),
    ]


@pytest.mark.parametrize("name", sorted(set(MODULES) - {""}))
def test_each_module_knows_only_its_left(name: str) -> None:
    own = room(name)
    assert own in STREET, f"{own} is a new room: give it a place in STREET (and in DESIGN)"
    wrong = [
        f"line {one.line}: {one.module}"
        for one in ours(name)
        if one.module and room(one.module) != own and room(one.module) not in STREET[own]
    ]
    assert not wrong, f"{name} may import {', '.join(sorted(STREET[own])) or 'nothing of ours'}; it imports {wrong}"


def test_the_street_has_one_direction() -> None:
    # A table without a cycle is a table that can be laid out as one street.
    left: dict[str, frozenset[str]] = dict(STREET)
    while left:
        free = [name for name, may in left.items() if not may & left.keys()]
        assert free, f"a circle among {', '.join(left)}"
        for name in free:
            del left[name]


def test_every_room_of_the_table_is_there() -> None:
    assert {room(name) for name in MODULES if name} == set(STREET)


def test_the_order_that_the_design_draws() -> None:
    order = ["card", "contract", "measure", "stats", "verdict", "report"]
    for at, name in enumerate(order):
        assert not STREET[name] & set(order[at + 1 :])
    for name in ("report", "history"):
        assert not STREET[name] & {"engine", "client", "measure", "runner", "prompts", "watch", "session"}
        for module in (one for one in MODULES if room(one) == name):
            assert not {found.module for found in ours(module)} & SENDERS
    assert not STREET["records"]
    assert not STREET["errors"]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_plugin_knows_pytest(name: str) -> None:
    found = [
        one.module
        for one in outside(name)
        if one.module.split(".")[0] in {"pytest", "_pytest", "pytest_asyncio", "pluggy"}
    ]
    assert not found or name in PYTEST_ONLY


@pytest.mark.parametrize("name", sorted({*PURE, *READERS}))
def test_the_pure_rooms_touch_nothing(name: str) -> None:
    for module in sorted(runtime_closure(name)):
        touched = [
            f"{module} line {one.line}: {one.module}"
            for one in outside(module)
            if one.module.split(".")[0] in IMPURE and not one.typing_only
        ]
        assert not touched, f"{name} is pure"
    calls = [
        f"line {node.lineno}: {node.func.id}"
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    assert not calls, f"{name} is pure"


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    heavy = (
        "httpx httpcore anyio pydantic pydantic_core pynvml psutil sqlite3 matplotlib jsonschema huggingface_hub "
        "sqlalchemy alembic"
    )
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import pytest_llmbench.plugin\n"
        "new = set(sys.modules) - before\n"
        f"print(*sorted(set({heavy.split()!r}) & new), '|', *sorted(n for n in new if n.startswith('pytest_llmbench.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, _, own = done.stdout.strip().rpartition("|")
    assert not loaded.strip()
    assert {name.removeprefix("pytest_llmbench.") for name in own.split()} <= PYTEST_ONLY | LIGHT
