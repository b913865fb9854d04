"""From a card's arguments to the command that is run, and what is declared as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.engine import LaunchSpec
from pytest_llmbench.engine.launch import prepare
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

NEW_HELP = " - 3: info\n - 4: trace (more info)\n - 5: debug"
OLD_HELP = " - 3: info\n - 4: debug"


@pytest.fixture
def binary(tmp_path: Path) -> str:
    return engine(tmp_path, "llama-server", NEW_HELP)


def engine(folder: Path, name: str, text: str) -> str:
    """A program that prints a help text, which is all that preparing asks of it."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_API_KEY", raising=False)


def test_the_cards_tokens_stay_and_ours_are_declared(binary: str) -> None:
    spec = LaunchSpec(
        binary, ("-m", "m.gguf", "--jinja", "--host", "0.0.0.0", "--port", "8888", "-lv", "3"), "/models/m.gguf"
    )
    launch = prepare(spec, 40967)
    assert launch.argv == (
        binary, "-m", "/models/m.gguf", "--jinja", "--host", "127.0.0.1", "--port", "40967", "-lv", "4", "--metrics",
    )  # fmt: skip
    assert launch.changes == (
        "-m m.gguf -> /models/m.gguf",
        "--host 0.0.0.0 -> 127.0.0.1",
        "--port 8888 -> 40967",
        "added --metrics",
        "-lv 3 -> 4",
    )
    assert launch.base_url == "http://127.0.0.1:40967"


def test_what_the_card_has_already_is_not_ours(binary: str) -> None:
    args = ("--metrics", "--host", "127.0.0.1", "-lv", "5", "--model", "/m.gguf")
    assert prepare(LaunchSpec(binary, args, "/m.gguf"), 1234).changes == ("added --port 1234",)


@pytest.mark.parametrize("level", [(), ("-v",), ("-lv", "2")])
def test_the_log_level_is_left_alone_where_4_would_flood(tmp_path: Path, level: tuple[str, ...]) -> None:
    old = engine(tmp_path, "old-server", OLD_HELP)
    assert prepare(LaunchSpec(old, level, "/m.gguf"), 1).argv[1 : 1 + len(level)] == level
    assert not any("-lv" in change for change in prepare(LaunchSpec(old, level, "/m.gguf"), 1).changes)


def test_verbose_is_not_lowered(binary: str) -> None:
    assert "-lv" not in prepare(LaunchSpec(binary, ("-v",), "/m.gguf"), 1).argv


def test_a_disabled_log_is_switched_on(binary: str) -> None:
    launch = prepare(LaunchSpec(binary, ("--log-disable",), "/m.gguf"), 1)
    assert "--log-disable" not in launch.argv
    assert "removed --log-disable" in launch.changes


def test_the_callers_changes_are_in_the_command_and_not_called_ours(binary: str) -> None:
    spec = LaunchSpec(binary, ("--ctx-size", "262144", "-np", "4"), "/m.gguf", changes=(("-c", "4096"), ("-kvu", "")))
    launch = prepare(spec, 1)
    assert launch.argv[1:5] == ("--ctx-size", "4096", "-np", "4")
    assert "-kvu" in launch.argv
    assert not any("4096" in change for change in launch.changes)


def test_a_hub_model_is_replaced_by_its_file(binary: str) -> None:
    launch = prepare(LaunchSpec(binary, ("-hf", "who/what:Q4", "-c", "1"), "/hub/m.gguf"), 1)
    assert launch.argv[1:5] == ("-c", "1", "-m", "/hub/m.gguf")
    assert launch.changes[0] == "-hf who/what:Q4 replaced by the file itself"


def test_a_draft_model_in_any_spelling(binary: str) -> None:
    launch = prepare(LaunchSpec(binary, ("--spec-draft-model", "d.gguf"), "/m.gguf", draft_path="/d.gguf"), 1)
    assert launch.argv[1:3] == ("--spec-draft-model", "/d.gguf")


def test_a_wrapper_stands_in_front(binary: str) -> None:
    launch = prepare(LaunchSpec(binary, (), "/m.gguf", wrapper=("numactl", "-N", "0")), 1)
    assert launch.argv[:4] == ("numactl", "-N", "0", binary)


@pytest.mark.parametrize(
    ("wrapper", "args", "port"),
    [
        (("docker", "run", "--rm", "-p", "127.0.0.1:9000:8080", "image"), (), 9000),
        (("sudo", "docker", "run", "-p", "9001:8080", "image"), ("--port", "8080"), 9001),
        (("podman", "run", "--network", "host", "image"), ("--port", "7777"), 7777),
        (("docker", "run", "--network=host", "image"), (), 8080),
    ],
)
def test_a_container_keeps_its_host_and_port(wrapper: tuple[str, ...], args: tuple[str, ...], port: int) -> None:
    launch = prepare(LaunchSpec("/app/llama-server", ("--host", "0.0.0.0", *args), "/m.gguf", wrapper=wrapper), 0)
    assert launch.in_container
    assert launch.base_url == f"http://127.0.0.1:{port}"
    assert "0.0.0.0" in launch.argv
    assert any("container" in change for change in launch.changes)


def test_an_api_prefix_is_part_of_the_address(binary: str) -> None:
    assert prepare(LaunchSpec(binary, ("--api-prefix", "/v9/"), "/m.gguf"), 5).base_url == "http://127.0.0.1:5/v9"


def test_tls_is_refused(binary: str) -> None:
    with pytest.raises(InputError, match="--ssl-key-file"):
        prepare(LaunchSpec(binary, ("--ssl-key-file", "k.pem"), "/m.gguf"), 1)


def test_settings_in_the_callers_environment_do_not_change_the_server(
    binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    launch = prepare(LaunchSpec(binary, (), "/m.gguf", env=(("LLAMA_ARG_THREADS", "2"),)), 1)
    assert launch.unset == ("LLAMA_ARG_CTX_SIZE",)
    assert "LLAMA_ARG_CTX_SIZE of the caller's environment left out" in launch.changes


def test_the_key_that_requests_need(binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\n\nfrom-file\nother\n")
    assert prepare(LaunchSpec(binary, (), "/m.gguf"), 1).headers == {}
    from_file = prepare(LaunchSpec(binary, ("--api-key-file", str(keys)), "/m.gguf"), 1)
    assert from_file.headers == {"Authorization": "Bearer from-file"}
    assert "from-file" not in repr(from_file)
    assert prepare(LaunchSpec(binary, ("--api-key", "a,b"), "/m.gguf"), 1).headers == {"Authorization": "Bearer a"}
    monkeypatch.setenv("LLAMA_API_KEY", "from-env")
    assert prepare(LaunchSpec(binary, (), "/m.gguf"), 1).headers == {"Authorization": "Bearer from-env"}
    with pytest.raises(InputError, match="No such file"):
        prepare(LaunchSpec(binary, ("--api-key-file", str(tmp_path / "absent")), "/m.gguf"), 1)
