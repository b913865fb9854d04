"""The README's two commands, what CI does with them, and that CI cannot pass on skipped tests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CI = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
COMMANDS = dict(re.findall(r"^<!-- command: (\w+) -->\n```sh\n(.*?)\n```$", README, re.MULTILINE | re.DOTALL))


def test_the_readme_has_exactly_two_commands_of_one_line() -> None:
    assert set(COMMANDS) == {"demo", "test"}
    assert README.count("<!-- command:") == 2
    for command in COMMANDS.values():
        assert "\n" not in command
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_what_the_commands_name_is_there() -> None:
    words = shlex.split(COMMANDS["demo"])
    assert words[-4:] == [".venv/bin/pytest", "bench_suites/", "--setup", "bench_suites/cards/demo.json"]
    for path in words[-3], words[-1]:
        assert (REPOSITORY / path).exists()
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for command in COMMANDS.values():
        (extras,) = re.findall(r"'\.\[([\w,]+)\]'", command)
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_ci_runs_the_second_command_as_it_stands() -> None:
    # The script's own way to find the command, up to where it would be run.
    found = subprocess.run(
        ["bash", "-c", CI.partition("[ -n")[0] + 'printf "%s" "$command"', str(REPOSITORY / ".ci" / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == COMMANDS["test"]
    for tool in ("ruff check .", "ruff format --check .", "mypy"):
        assert f".venv/bin/{tool}" in CI


def test_ci_refuses_to_skip_real_tests() -> None:
    assert re.search(r'^LLMBENCH_TESTS_REQUIRE_REAL=1 bash .*"\$command"', CI, re.MULTILINE)


@pytest.mark.parametrize("how", ["pytest.skip('no engine')", "pytest.importorskip('no_such_engine')"])
@pytest.mark.parametrize("where", ["test", "fixture", "module"])
def test_a_skip_is_a_failure_where_real_tests_are_required(pytester: pytest.Pytester, how: str, where: str) -> None:
    (pytester.path / "conftest.py").write_text((REPOSITORY / "tests" / "real" / "conftest.py").read_text())
    if where == "module":
        how = how.replace("'no engine'", "'no engine', allow_module_level=True")
    (pytester.path / "test_real.py").write_text(
        "import pytest\n"
        + (f"{how}\n" if where == "module" else "")
        + "@pytest.fixture\ndef engine():\n    "
        + (how if where == "fixture" else "pass")
        + "\ndef test_one(engine):\n    "
        + (how if where == "test" else "pass")
        + "\n"
    )
    outcomes = {}
    for required in ("", "0", "1"):
        environment = {**os.environ, "LLMBENCH_TESTS_REQUIRE_REAL": required}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", environment)
            result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
        outcomes[required] = result.ret
        if required == "1":
            result.stdout.fnmatch_lines(["*LLMBENCH_TESTS_REQUIRE_REAL is set*no*engine*"])
    nothing = pytest.ExitCode.NO_TESTS_COLLECTED if where == "module" else pytest.ExitCode.OK
    failed = pytest.ExitCode.INTERRUPTED if where == "module" else pytest.ExitCode.TESTS_FAILED
    assert outcomes == {"": nothing, "0": nothing, "1": failed}


def test_no_test_file_is_named_like_a_suite() -> None:
    # Both are modules without a package: in one process the second one's import would be the first one.
    suites = {path.name for path in (REPOSITORY / "bench_suites").glob("test_*.py")}
    assert not {path.name for path in (REPOSITORY / "tests").rglob("test_*.py")} & suites
