"""The documentation says what is so: its cards validate, its scripts run, its flags, knobs, keys and links exist."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_llmbench import flags, outcomes
from pytest_llmbench.card import FIGURES, PARTS, SetupCard
from pytest_llmbench.measure import PARTS as MEASURED
from pytest_llmbench.paced import Pace, running
from pytest_llmbench.records import CellStatus
from pytest_llmbench.report.form import Document

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
TEXTS = {page.relative_to(REPOSITORY).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks(language: str) -> list[Any]:
    """Every fenced block of a language: page, the comment before it, text."""
    found = [
        pytest.param(name, block["note"] or "", block["text"], id=f"{name}-{at}")
        for name, text in TEXTS.items()
        for at, block in enumerate(_BLOCK.finditer(text), 1)
        if block["language"] == language
    ]
    assert found, f"no page has a block of {language}"
    return found


def page(name: str) -> str:
    return TEXTS[name]


# ---- examples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "note", "text"), blocks("json"))
def test_every_card_in_the_docs_is_a_card(name: str, note: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    content = json.loads(text)
    if "llmbench_card" not in content:  # a section by itself
        content = {
            "llmbench_card": 1,
            "id": "a",
            "title": "A",
            "model": {"name": "A"},
            "engine": {"kind": "llama-server"},
        } | content
    path.write_text(json.dumps(content), encoding="utf-8")
    assert SetupCard.load(path).id, (name, note)


@pytest.mark.parametrize(("name", "note", "text"), blocks("python"))
def test_every_python_block_compiles(name: str, note: str, text: str) -> None:
    # An await on its own, as in a notebook, is fine.
    compile(text, f"{name} {note}", "exec", flags=0x2000)


RUNNABLE = [p for p in blocks("python") if str(p.values[1]).startswith("runnable: ")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the pages assume it: a card, a finished session of it, its raw files and report in place."""
    folder = tmp_path_factory.mktemp("docs")
    engine = folder / "engine"
    engine.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from pytest_llmbench.paced.__main__ import main\nsys.exit(main())\n",
        encoding="utf-8",
    )
    engine.chmod(0o755)
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    card = {
        "llmbench_card": 1,
        "id": "docs",
        "title": "Docs",
        "hardware": {"gpus": []},
        "model": {"name": "Tiny", "file": {"path": "tiny.gguf"}},
        "engine": {"kind": "llama-server", "binary": {"path": "./engine"}},
        "server": {
            "args": ["-m", "tiny.gguf", "-c", "8192", "-np", "1"],
            "env": {"LLMBENCH_PACED": json.dumps({"tok_s": 500, "ttft_ms": 5})},
        },
        "plan": {
            "parts": ["decode", "prefill"],
            "decode": {"max_tokens": 32},
            "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
        },
        "thresholds": {"decode[code]": {"decode_tok_s": {"floor": 5000}}},
        # A test machine is busy.
        "client_check": {"decode_within": 5.0, "ttft_above_ms": 20_000},
        "watch": {"guard": False},
    }
    (folder / "my-card.json").write_text(json.dumps(card), encoding="utf-8")
    for suite in ("test_decode.py", "test_prefill.py"):
        shutil.copy(REPOSITORY / "bench_suites" / suite, folder / suite)
    done = run_in(
        folder,
        "-m",
        "pytest",
        *_PYTEST,
        "test_decode.py",
        "--setup",
        "my-card.json",
        "--llmbench-json",
        "out/report.json",
    )
    assert done.returncode == outcomes.EXIT_CODES["performance"], done.stdout + done.stderr
    (session,) = (folder / ".llmbench" / "runs").iterdir()
    shutil.copytree(session / "docs" / "raw", folder / "raw")
    return folder


_PYTEST = ("-p", "no:cacheprovider")


def run_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLMBENCH_")}
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**env, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# What each script must print; a script without an entry fails its test.
PRINTS = {
    "recompute": r"decode\[code\]/1/1/0/s1 [\d.]+ tok/s",
    "recompute-library": r"decode\[code\]/1/1/0/s1 [\d.]+ [\d.]+",
    "library": r"decode\[code\] below floor: (.|\n)*True [\d.]+",
    "read-report": r"decode\[code\] decode_tok_s [\d.]+ tok/s",
    "triage": r"slow: decode\[code\] below floor",
    "prompts": r"8192 [0-9a-f]{64} ",
    "paced": r"[\d.]+ [\d.]+ [\d.]+",
}


@pytest.mark.parametrize(("name", "note", "text"), RUNNABLE)
def test_every_runnable_script_runs(name: str, note: str, text: str, measured: Path) -> None:
    which = note.removeprefix("runnable: ")
    script = measured / f"test_{which.replace('-', '_')}.py"
    script.write_text(text, encoding="utf-8")
    if which == "own-bench":
        done = run_in(
            measured, "-m", "pytest", *_PYTEST, script.name, "-k", "steady or 512", "--setup", str(loose(measured))
        )
        # A busy machine may make two runs differ by more than the page allows; then the page's own message says it.
        assert re.search(r"\b3 passed|FAILED .*runs differ by", done.stdout), done.stdout
        return
    done = run_in(measured, script.name)
    assert done.returncode == 0, (name, done.stderr)
    assert re.search(PRINTS[which], done.stdout), done.stdout


def loose(folder: Path) -> Path:
    """The card without its threshold."""
    card = json.loads((folder / "my-card.json").read_text(encoding="utf-8"))
    path = folder / "loose.json"
    path.write_text(json.dumps(card | {"id": "loose", "thresholds": {}}), encoding="utf-8")
    return path


def test_the_two_recomputations_and_the_report_agree(measured: Path) -> None:
    scripts = {str(p.values[1]).removeprefix("runnable: "): str(p.values[2]) for p in RUNNABLE}
    found = []
    for which in ("recompute", "recompute-library"):
        script = measured / f"agree_{which.replace('-', '_')}.py"
        script.write_text(scripts[which], encoding="utf-8")
        done = run_in(measured, script.name)
        lines = [line.split() for line in done.stdout.splitlines()]
        found.append({words[0]: float(words[1]) for words in lines})
    report = json.loads((measured / "out" / "report.json").read_text(encoding="utf-8"))
    (cell,) = [c for c in report["cells"] if c["id"] == "decode[code]"]
    (figure,) = [f for f in cell["figures"] if f["name"] == "decode_tok_s"]
    assert found[0] == pytest.approx(found[1])
    assert [found[1][a["request_ids"][0]] for a in cell["attempts"]] == pytest.approx(figure["values"])


def test_the_recomputation_is_ten_lines() -> None:
    (text,) = [str(p.values[2]) for p in RUNNABLE if p.values[1] == "runnable: recompute"]
    code = [line for line in text.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) <= 10


# ---- flags, fields, keys, links -----------------------------------------------------------------------------------------


def _flags() -> set[str]:
    parser = pytest.Parser(_ispytest=True)
    flags.add_options(parser)
    (group,) = [g for g in parser._groups if g.name == "llmbench"]
    return {name for option in group.options for name in option.names()}


def test_every_flag_is_in_the_table_and_every_flag_of_the_docs_exists() -> None:
    flags = _flags()
    table = page("docs/command-line.md")
    for flag in flags:
        assert f"| `{flag}" in table, f"{flag} has no row in docs/command-line.md"
    for name, text in TEXTS.items():
        said = set(re.findall(r"--llmbench-[a-z-]+[a-z]", text))
        assert said <= flags, f"{name} names flags that do not exist: {said - flags}"


def test_every_ini_and_variable_of_a_flag_is_in_the_table() -> None:
    parser = pytest.Parser(_ispytest=True)
    flags.add_options(parser)
    text = page("docs/command-line.md")
    for name in parser._inidict:
        assert f"`{name}`" in text
        assert f"`{name.upper()}`" in text


def _fields(model: Any, seen: set[Any]) -> set[str]:
    """The names of a pydantic model's fields, and of the models in it."""
    if model in seen:
        return set()
    seen.add(model)
    names = set()
    for name, field in model.model_fields.items():
        names.add(field.alias or name)
        for inner in _models(field.annotation):
            names |= _fields(inner, seen)
    return names


def _models(annotation: Any) -> list[Any]:
    found = [annotation] if hasattr(annotation, "model_fields") else []
    return found + [model for inner in get_args(annotation) for model in _models(inner)]


def test_every_field_of_a_card_is_in_its_page() -> None:
    text = page("docs/card.md") + page("docs/watch.md")
    missing = {name for name in _fields(SetupCard, set()) if not re.search(rf"[`\"]{re.escape(name)}[`\": ]", text)}
    assert not missing, f"docs/card.md and docs/watch.md do not name {sorted(missing)}"


def test_every_key_of_a_report_is_in_its_page() -> None:
    text = page("docs/report.md")
    missing = {name for name in _fields(Document, set()) if f"`{name}`" not in text}
    assert not missing, f"docs/report.md does not name {sorted(missing)}"


def test_every_part_figure_and_status_is_explained() -> None:
    text, card = page("docs/parts.md"), page("docs/card.md")
    for name, part in MEASURED.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, f"docs/parts.md has no section {name}"
        for kind in part.kinds:
            better = "-" if kind.direction == "none" else kind.direction
            gated = "no" if not kind.gated else "yes" if kind.required else "yes, where known"
            assert f"| `{kind.name}` | {kind.unit} | {better} | {gated} |" in section, f"{name}: {kind}"
    for status in get_args(CellStatus):
        assert f"| `{status}` |" in text
    for part_name in PARTS:
        assert f"| `{part_name}` |" in card
        for figure in FIGURES[part_name]:
            assert figure in card


def test_every_knob_of_the_paced_server_is_in_its_page() -> None:
    text = page("docs/paced.md")
    assert not [f.name for f in dataclasses.fields(Pace) if f"`{f.name}`" not in text]


def test_the_paced_server_starts_as_the_page_says() -> None:
    with running(Pace(tok_s=50, ttft_ms=100)) as server:
        assert server.base_url.startswith("http://127.0.0.1:")


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_links_between_pages_resolve(name: str) -> None:
    base = (REPOSITORY / name).parent
    prose = _BLOCK.sub("", TEXTS[name])
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (base / file).resolve() if file else REPOSITORY / name
        assert path.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in _anchors(path.read_text(encoding="utf-8")), f"{name} links to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", page("README.md")))
    assert {name for name in TEXTS if name.startswith("docs/")} <= linked


def test_changelog_fragments_have_a_known_kind() -> None:
    for fragment in (REPOSITORY / "changelog.d").iterdir():
        if fragment.name != "README.md":
            assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md", fragment.name), fragment.name
            assert fragment.read_text(encoding="utf-8").strip()
