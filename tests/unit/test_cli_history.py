"""``llmbench history`` and ``llmbench baseline``: what is printed, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import IDENTITY, at, changed, document

from pytest_llmbench.cli import common
from pytest_llmbench.cli.main import main
from pytest_llmbench.history.file import BaselineFile
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LLMBENCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def fill(storage: str = ".llmbench", given: str | None = None, count: int = 3) -> None:
    with Store.open(Path(storage), given) as store:
        for number in range(count):
            one = document(number, decode=60.0 + number / 10)
            if number == 1:
                one["cells"][0]["figures"][0] |= {"verdict": "regressed", "change": -0.08, "dip": True}
                one["cells"][1] |= {"status": "disturbed", "reasons": ["run 1: foreign load\nmore"], "figures": []}
                one["complete"] = False
            store.record(one, Path(storage) / "runs" / one["session"] / "card")


def test_the_list_of_sessions(said: Said) -> None:
    fill()
    code, out, err = said("history")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["when", "(UTC)", "session", "card", "machine", "status", "verdicts"]
    assert [row.split("  ")[1] for row in rows] == ["S0002", "S0001", "S0000"]
    assert rows[1] == "2026-01-02 04:04  S0001    card  RTX 3090 (here)  1 disturbed  1 not compared, 1 regressed"
    assert rows[2] == "2026-01-02 03:04  S0000    card  RTX 3090 (here)  complete     3 not compared"
    assert len(said("history", "--limit", "1")[1].splitlines()) == 2
    assert said("history", "--card", "other")[1].startswith("no session of card other in sqlite:///")


def test_one_session(said: Said) -> None:
    fill()
    code, out, _ = said("history", "show", "S0001")
    assert code == 0
    assert "S0001  card  2026-01-02 04:04 to 2026-01-02 04:09 UTC  pytest-llmbench 0.1.0" in out
    assert "not complete; raw files: " in out
    assert "runs/S0001/card (gone)" in out
    assert "  engine: b12223" in out
    assert "  decode_tok_s   60.10  tok/s  regressed (dip)   -8.0%  runs 59.50 60.10 60.70" in out
    assert "prefill[2048]: disturbed\n  run 1: foreign load\n" in out
    code, _, err = said("history", "show", "S9")
    assert code == 4
    assert "session = 'S9': not in sqlite:///" in err
    assert "(last: S0002, S0001, S0000)" in err


@pytest.mark.parametrize("command", [("history",), ("history", "show", "x"), ("baseline",), ("history", "export", "x")])
def test_where_there_is_no_history_it_says_so(said: Said, command: tuple[str, ...]) -> None:
    code, out, err = said(*command)
    assert (code, out) == (4, "")
    assert "there is no history yet" in err
    assert not Path(".llmbench").exists()


def test_an_empty_history(said: Said) -> None:
    Store.open(Path(".llmbench")).close()
    assert said("history")[1].startswith("no session in sqlite:///")
    assert said("baseline")[1].startswith("no baseline in sqlite:///")
    assert said("baseline", "--card", "x")[1].startswith("no baseline of card x in")
    code, _, err = said("baseline", "export", "card", "b.json")
    assert code == 4
    assert "card = 'card': not in" in err


@pytest.mark.parametrize("given", ["other.sqlite", "sqlite:///other.sqlite"])
def test_the_place_is_a_flag_or_the_environment(said: Said, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    fill(storage="store", given=given)
    assert "S0002" in said("history", "--history", given)[1]
    assert "S0002" in said("history", "show", "S0002", "--history", given)[1]  # before or behind the action
    monkeypatch.setenv("LLMBENCH_HISTORY", given)
    assert "S0002" in said("history")[1]
    assert said("history", "--history", "nowhere.sqlite")[0] == 4  # a flag beats the environment
    monkeypatch.delenv("LLMBENCH_HISTORY")
    fill(storage="mine")
    monkeypatch.setenv("LLMBENCH_STORAGE", "mine")
    assert "S0002" in said("history")[1]


def test_rebuild_names_what_it_skips(said: Said) -> None:
    for name, content in (("a", json.dumps(document(1))), ("b", "{")):
        folder = Path(".llmbench/runs") / name / "card"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(content)
    Path(".llmbench/runs/c/card").mkdir(parents=True)
    code, out, err = said("history", "rebuild")
    assert code == 1
    assert "1 session and 0 acceptances" in out
    assert "not recorded: 1 run without a report; probes and direct comparisons: 0" in out
    assert err.startswith("skipped ")
    assert "runs/b/card/report.json: cannot be read: Expecting property name" in err


def test_export_and_import(said: Said) -> None:
    fill()
    assert (
        said("history", "export", "h.jsonl")[1] == f"{len(Path('h.jsonl').read_text().splitlines())} lines in h.jsonl\n"
    )
    code, out, _ = said("history", "import", "h.jsonl", "--storage", "two")
    assert code == 0
    assert re.match(r"new in sqlite:///\S+: 3 sessions and 0 acceptances; there already: 0\n", out)
    assert said("history", "import", "h.jsonl", "--storage", "two")[1].endswith("; there already: 3\n")


def test_baselines_and_an_acceptance(said: Said) -> None:
    fill(count=12)
    code, out, _ = said("baseline")
    assert code == 0
    title, _, *rows = out.splitlines()
    assert title == "card on RTX 3090 (here), last measured 2026-01-02 14:04 UTC"
    assert rows[0].split() == [
        *("decode[code]", "decode_tok_s", "10", "60.45", "tok/s"),
        *("0.5%", "pinned", "2026-01-02", "2026-01-02"),
    ]
    code, out, _ = said(
        "baseline", "accept", "--card", "card", "--reason", "new kernel", "--cell", "decode[code]", "--who", "ann"
    )
    assert code == 0
    assert out.startswith("accepted for card from session S0011 on: decode[code]\nreason: new kernel (ann, ")
    rows = said("baseline", "--card", "card")[1].splitlines()[2:]
    assert "collecting, 9 missing" in rows[0]
    assert rows[0].endswith(": new kernel")
    assert "pinned" in rows[2]
    code, _, err = said("baseline", "accept", "--card", "card", "--reason", "x", "--cell", "decode[prose]")
    assert code == 4
    assert "cell = 'decode[prose]': not in session S0011" in err


def test_a_baseline_is_exported(said: Said) -> None:
    fill()
    code, out, _ = said("baseline", "export", "card", "b.json")
    assert code == 0
    assert out == "3 baselines, 0 of them pinned, from 3 sessions in b.json\n"
    assert len(BaselineFile.load(Path("b.json")).baselines_of(IDENTITY)) == 3
    with Store.open(Path(".llmbench")) as store:
        store.record(document(9, identity=changed("machine.host_id", "there")), "x")
    code, _, err = said("baseline", "export", "card", "b.json")
    assert code == 4
    assert "the card was measured on: RTX 3090 (there); RTX 3090 (here)" in err
    assert said("baseline", "export", "card", "b.json", "--host", "the")[0] == 0
    assert BaselineFile.load(Path("b.json")).machine["host_id"] == "there"
    assert said("baseline", "export", "card", "b.json", "--host", "nowhere")[0] == 4


@pytest.mark.parametrize("args", [(), ("histroy",), ("history", "--limit", "x"), ("baseline", "accept", "--card", "x")])
def test_wrong_arguments_are_argparses_business(args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2


def test_a_limit_of_nothing(said: Said) -> None:
    assert said("history", "--limit", "0")[0] == 4


def test_a_reader_that_had_enough() -> None:
    fill(count=1)
    code = (
        "import sys; from pytest_llmbench.cli import history; from pytest_llmbench.cli.main import main\n"
        "history._list = lambda *_: [print('x' * 1000) for _ in range(1000)] and 0\nsys.exit(main(['history']))"
    )
    root = str(Path(__file__).parents[2])
    piped = f'{sys.executable} -c "$CODE" 2>err | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}'
    env = {**os.environ, "CODE": code, "PYTHONPATH": root}
    done = subprocess.run(["bash", "-c", piped], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert Path("err").read_text() == ""


def test_numbers_and_times() -> None:
    assert [common.number(value) for value in (12345.6, 234.56, 12.345, 0.01234)] == [
        "12,346",
        "234.6",
        "12.35",
        "0.0123",
    ]
    assert common.when(at(0)) == "2026-01-02 03:04"


# ---- where an export goes ----


def test_an_export_to_standard_output(said: Said) -> None:
    fill()
    for place in ("-", "/dev/stdout"):
        code, out, _ = said("history", "export", place)
        assert code == 0
        assert json.loads(out.partition("\n")[0])["llmbench_history"] == 1
        code, out, _ = said("baseline", "export", "card", place)
        assert code == 0
        assert json.loads(out)["llmbench_baselines"] == 1
    assert not Path("-").exists()


@pytest.mark.parametrize("command", [("history", "export"), ("baseline", "export", "card")])
def test_an_export_goes_through_a_link_and_never_onto_a_folder_or_a_device(
    said: Said, command: tuple[str, ...]
) -> None:
    fill()
    Path("real").mkdir()
    Path("link").symlink_to("real/file")
    assert said(*command, "link")[0] == 0
    assert Path("link").is_symlink()
    assert Path("real/file").is_file()
    os.mkfifo("pipe")
    for place, reason in ((".", "is a folder"), ("real", "is a folder"), ("pipe", "is not a regular file")):
        code, _, err = said(*command, place)
        assert code == 4
        assert err.startswith(f"llmbench: file = {place!r}: {reason}")
    assert Path("pipe").is_fifo()
    Path("loop").symlink_to("loop")
    assert said(*command, "loop")[0] == 4
    assert sorted(one.name for one in Path("real").iterdir()) == ["file"]


def test_no_traceback_for_what_the_system_refuses(said: Said) -> None:
    fill()
    Path("llmbench-marks.json").mkdir()
    code, _, err = said("marks")
    assert code == 4
    assert err.startswith("llmbench: ")
