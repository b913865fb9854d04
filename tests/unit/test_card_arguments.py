"""What llama-server would refuse, or never serve with, is told before it is started."""

from __future__ import annotations

import pytest

from pytest_llmbench.card import arguments


def told(*args: str, **env: str) -> list[str]:
    return [f"{one.field}: {one.reason}" for one in arguments.faults(args, env)]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (("-np", "0"), "args[0]: -np cannot be 0"),
        (("--parallel", "-2"), "args[0]: --parallel cannot be -2"),
        (("-c", "-1"), "args[0]: -c cannot be -1"),
        (("-c", "4k"), "args[0]: -c needs a whole number, found '4k'"),
        (("-c", "4_096"), "args[0]: -c needs a whole number, found '4_096'"),
        (("-c", "٤"), "args[0]: -c needs a whole number, found '٤'"),
        (("-c", ""), "args[0]: -c needs a whole number, found ''"),
        (("--ctx_size", "x"), "args[0]: --ctx_size needs a whole number, found 'x'"),
        (("-c", "99999999999"), "args[0]: -c is above what llama-server can hold (2147483647)"),
        (("-b", "0"), "args[0]: -b cannot be 0"),
        (("-t", "two"), "args[0]: -t needs a whole number, found 'two'"),
        (("-fa", "on", "-t"), "args[2]: -t needs a value, and nothing follows"),
        (("-c", "-np", "1"), "args[0]: -c needs a value, and the flag -np follows"),
        (("--help",), "args[0]: --help makes the program print something and end"),
        (("-m", "x", "--version"), "args[2]: --version makes the program print something and end"),
        (("--ctx-size=4096",), "args[0]: llama-server does not take --ctx-size joined to its value with '='"),
        (("--newer-flag=1",), "args[0]: llama-server does not take --newer-flag joined to its value with '='"),
        (("-c 4096",), "args[0]: -c and what belongs to it stand in one entry"),
        (("-fa", "on", ""), "args[2]: is empty, and stands at a flag's place"),
    ],
)
def test_one_fault(args: tuple[str, ...], fault: str) -> None:
    assert told(*args) == [fault]


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "0", "-np", "-1", "-t", "-1", "-b", "512", "-cram", "-1"),
        ("-c", "<CTX SIZE>", "-t", "<your cores>"),
        ("-fa", "-c", "8192"),  # bare in older builds
        ("--chat-template", "--odd text=with a flag in it", "-a", ""),
        ("--newer-flag", "-x=3", "-ngl", "all"),
        ("--newer-switch", "-c", "8192"),
        ("-ngld", "-1", "-s", "-1"),
    ],
)
def test_what_is_no_fault(args: tuple[str, ...]) -> None:
    assert told(*args) == []


def test_the_environment_counts_too() -> None:
    assert told(LLAMA_ARG_N_PARALLEL="0") == ["env.LLAMA_ARG_N_PARALLEL: -np cannot be 0"]
    assert told(LLAMA_ARG_CTX_SIZE="8k") == ["env.LLAMA_ARG_CTX_SIZE: -c needs a whole number, found '8k'"]
    assert told(LLAMA_ARG_CTX_SIZE="8192", OTHER="x") == []


def test_no_message_quotes_what_may_be_a_secret() -> None:
    assert "hunter2" not in "".join(told("--pass hunter2", "--pass=hunter2", "--hf-token", "hunter2"))


def test_flags_that_are_not_known_are_listed() -> None:
    assert arguments.unknown(("-c", "1", "--ctx-szie", "2", "-a", "--name", "-x")) == [(2, "--ctx-szie"), (6, "-x")]
