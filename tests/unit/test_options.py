"""Flags, ini values and variables become one Settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench import options

if TYPE_CHECKING:
    from pytest_llmbench.options import Settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("LLMBENCH_")]:
        monkeypatch.delenv(name)


def read(pytester: pytest.Pytester, *args: str, ini: str = "") -> Settings | None:
    pytester.makeini(f"[pytest]\nasyncio_default_fixture_loop_scope = function\n{ini}")
    return options.read(pytester.parseconfig(*args))


def settings(pytester: pytest.Pytester, *args: str, ini: str = "") -> Settings:
    found = read(pytester, "--setup", "card.json", *args, ini=ini)
    assert found is not None
    return found


def test_without_a_setup_the_plugin_stays_out_of_the_way(pytester: pytest.Pytester) -> None:
    assert read(pytester, "--llmbench-parts", "decode") is None


def test_defaults(pytester: pytest.Pytester) -> None:
    found = settings(pytester)
    assert found.setups == (pytester.path / "card.json",)
    assert found.storage == pytester.path / ".llmbench"
    assert (found.parts, found.save, found.autosave, found.compare, found.model, found.json) == (
        None, None, False, None, None, None,
    )  # fmt: skip
    assert (found.tolerance, found.tolerances) == (0.10, {})
    assert (found.ready_timeout_s, found.silence_timeout_s) == (600.0, 1800.0)
    assert found.variables == {}


def test_flag_before_ini_before_variable(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBENCH_STORAGE", "from-variable")
    assert settings(pytester).storage == pytester.path / "from-variable"
    assert settings(pytester, ini="llmbench_storage = from-ini").storage == pytester.path / "from-ini"
    found = settings(pytester, "--llmbench-storage", "from-flag", ini="llmbench_storage = from-ini")
    assert found.storage == pytester.path / "from-flag"


def test_setups_flag_before_ini_before_variable(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBENCH_SETUP", "variable.json")
    ini = "llmbench_setup =\n    one.json\n    two.json"
    assert [p.name for p in (read(pytester) or pytest.fail("none")).setups] == ["variable.json"]
    assert [p.name for p in (read(pytester, ini=ini) or pytest.fail("none")).setups] == ["one.json", "two.json"]
    found = read(pytester, "--setup", "a.json", "--setup", "b.json", ini=ini)
    assert found is not None
    assert [p.name for p in found.setups] == ["a.json", "b.json"]


def test_paths_are_relative_to_where_pytest_was_called(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("WEIGHTS", "/weights")
    found = settings(
        pytester, "--llmbench-model", "~/m.gguf", "--llmbench-json", "out/x.json", "--llmbench-storage", "$WEIGHTS/runs"
    )
    assert found.model == Path("/home/somebody/m.gguf")
    assert found.json == pytester.path / "out" / "x.json"
    assert found.storage == Path("/weights/runs")
    one = read(pytester, "--setup", "/absolute/card.json")
    assert one is not None
    assert one.setups == (Path("/absolute/card.json"),)


@pytest.mark.parametrize(
    ("given", "default", "special"),
    [
        (["5"], 0.05, {}),
        (["5%"], 0.05, {}),
        (["0"], 0.0, {}),
        (["decode_tok_s:2.5%"], 0.10, {"decode_tok_s": 0.025}),
        (["7%", "ttft_ms:30", "decode_tok_s:1%"], 0.07, {"ttft_ms": 0.30, "decode_tok_s": 0.01}),
        (["5", "6"], 0.06, {}),
    ],
)
def test_tolerances(pytester: pytest.Pytester, given: list[str], default: float, special: dict[str, float]) -> None:
    found = settings(pytester, *(word for one in given for word in ("--llmbench-compare-fail", one)))
    assert found.tolerance == pytest.approx(default)
    assert found.tolerances == pytest.approx(special)


def test_lists_and_variables(pytester: pytest.Pytester) -> None:
    found = settings(
        pytester,
        "--llmbench-parts",
        " decode, prefill,",
        "--llmbench-var",
        "GPU=GPU-1=x",
        "--llmbench-var",
        "<CTX>=8192",
    )
    assert found.parts == ("decode", "prefill")
    assert found.variables == {"GPU": "GPU-1=x", "CTX": "8192"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--llmbench-compare-fail=-1%",), "not a percentage"),
        (("--llmbench-compare-fail", "nan"), "not a percentage"),
        (("--llmbench-compare-fail", "inf"), "not a percentage"),
        (("--llmbench-compare-fail", "decode_tok_s:"), "not a percentage"),
        (("--llmbench-ready-timeout", "0"), "not a number of seconds above 0"),
        (("--llmbench-ready-timeout", "-1"), "not a number of seconds above 0"),
        (("--llmbench-ready-timeout", "nan"), "not a number of seconds above 0"),
        (("--llmbench-silence-timeout", "inf"), "not a number of seconds above 0"),
        (("--llmbench-save", "a/b"), "not a usable name"),
        (("--llmbench-save", ""), "is empty"),
        (("--llmbench-compare", ".."), "not a usable name"),
        (("--llmbench-var", "=x"), "not NAME=VALUE"),
        (("--llmbench-parts", " ,"), "names no part"),
        (("--llmbench-parts", ""), "is empty"),
    ],
)
def test_what_is_refused(pytester: pytest.Pytester, args: tuple[str, ...], said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said) as caught:
        settings(pytester, *args)
    assert args[0].partition("=")[0] in str(caught.value)


def test_every_flag_is_ours_and_has_a_help_text(pytester: pytest.Pytester) -> None:
    (group,) = [g for g in pytester.parseconfig()._parser._groups if g.name == "llmbench"]
    for option in group.options:
        (name,) = option.names()
        assert name == "--setup" or name.startswith("--llmbench-")
        assert option.attrs()["help"]
