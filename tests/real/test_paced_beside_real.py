"""The paced server beside the real one: the same requests to both, and the same shapes, orders and words back."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_under_test import binary, model, start

from pytest_llmbench.engine import LaunchSpec
from pytest_llmbench.paced.flags import SWITCHES, VALUED
from pytest_llmbench.paced.probe import Reply, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.engine.llama_server import LlamaServer

__all__ = ["binary", "model"]  # fixtures

CHAT = "/v1/chat/completions"
ARGS = ("-c", "2048", "-np", "2", "--no-webui", "--metrics")
MESSAGES = [{"role": "user", "content": "Say hello to the world."}]
ASKED = {"messages": MESSAGES, "max_tokens": 4, "temperature": 0, "cache_prompt": False}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The paced server as one executable file, as the console script is."""
    path = tmp_path_factory.mktemp("paced") / "llmbench-paced"
    root = Path(__file__).parents[2]
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from pytest_llmbench.paced.__main__ import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return str(path)


def started(program: str, model: str, log: Path, *args: str) -> LlamaServer:
    """Both by the engine room itself: to it, the paced server is a llama-server."""
    env = (("LLMBENCH_PACED", '{"ttft_ms": 5, "tok_s": 500, "add_bos": false}'),)
    spec = LaunchSpec(binary=program, args=(*ARGS, *args), model_path=model, env=env)
    return start(spec, log)


@pytest.fixture(scope="module")
def both(
    binary: str, program: str, model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaServer, LlamaServer]]:
    folder = tmp_path_factory.mktemp("beside")
    with contextlib.ExitStack() as stack:
        servers = []
        for name, one, more in (("real", binary, ("-t", "1")), ("paced", program, ("-t", "1"))):
            server = started(one, model, folder / f"{name}.log", *more)
            stack.callback(stop, server)
            servers.append(server)
        yield servers[0], servers[1]


def stop(server: LlamaServer) -> None:
    asyncio.run(server.stop())


def shape(value: Any) -> Any:
    """Keys in their order and types, without the values."""
    if isinstance(value, dict):
        return [(key, shape(one)) for key, one in value.items()]
    if isinstance(value, list):
        shapes = [shape(one) for one in value]
        return [one for i, one in enumerate(shapes) if one not in shapes[:i]]
    return type(value).__name__


def told(reply: Reply) -> tuple[Any, ...]:
    """Status, header names in order, and the shape of the body: of each event in each HTTP chunk where it streams."""
    names = [name for name in reply.headers if name not in ("keep-alive", "connection")]
    if reply.headers.get("content-type") != "text/event-stream":
        return reply.status, names, reply.headers.get("content-type"), shape(reply.json()), reply.complete
    chunks = [
        [
            shape(event) if isinstance(event, dict) else event
            for event in Reply(200, {}, (part,), complete=True, reads=()).events()
        ]
        for part in reply.parts
    ]
    return reply.status, names, chunks, reply.complete


def address(server: LlamaServer) -> tuple[str, int]:
    host, _, port = server.base_url.removeprefix("http://").rpartition(":")
    return host, int(port)


REQUESTS: dict[str, tuple[str, Any]] = {
    "health": ("/health", None),
    "models": ("/v1/models", None),
    "fresh slots": ("/slots", None),
    "stream with usage": (CHAT, {**ASKED, "stream": True, "stream_options": {"include_usage": True}}),
    "stream without usage": (CHAT, {**ASKED, "stream": True}),
    "one token": (CHAT, {**ASKED, "stream": True, "max_tokens": 1, "stream_options": {"include_usage": True}}),
    "timings per token": (CHAT, {**ASKED, "stream": True, "timings_per_token": True}),
    "progress": (CHAT, {**ASKED, "stream": True, "return_progress": True}),
    "whole": (CHAT, ASKED),
    "completion streamed": ("/completion", {"prompt": [600, 601], "n_predict": 3, "temperature": 0, "stream": True}),
    "completion timed": (
        "/completion",
        {"prompt": [600, 601], "n_predict": 3, "stream": True, "timings_per_token": True, "return_progress": True,
         "cache_prompt": False},
    ),
    "completion": ("/completion", {"prompt": "Once upon", "n_predict": 3, "temperature": 0}),
    "text completion streamed": ("/v1/completions", {"prompt": "Once", "max_tokens": 3, "stream": True, "temperature": 0}),
    "text completion": ("/v1/completions", {"prompt": "Once", "max_tokens": 3, "temperature": 0}),
    "used slots": ("/slots", None),
    "tokenize": ("/tokenize", {"content": "Hello you", "add_special": True}),
    "tokenize pieces": ("/tokenize", {"content": "Hello 😀", "with_pieces": True}),
    "tokenize nothing": ("/tokenize", {}),
    "detokenize": ("/detokenize", {"tokens": [600, 601]}),
    "apply template": ("/apply-template", {"messages": MESSAGES}),
    "input tokens": (CHAT + "/input_tokens", {"messages": MESSAGES}),
    "context exceeded": (CHAT, {**ASKED, "stream": True, "messages": [{"role": "user", "content": "word " * 3000}]}),
    "completion exceeded": ("/completion", {"prompt": "word " * 3000}),
    "not JSON": (CHAT, b"{nope"),
    "no messages": (CHAT, {}),
    "messages of a wrong type": (CHAT, {"messages": "x"}),
    "no prompt": ("/completion", {}),
    "no such path": ("/nope", None),
    "no such method": (CHAT, None),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_shapes(both: tuple[LlamaServer, LlamaServer], name: str) -> None:
    path, body = REQUESTS[name]
    real, paced = (send(address(server), path, body) for server in both)
    assert told(paced) == told(real)


@pytest.mark.parametrize("name", ["no messages", "messages of a wrong type", "no prompt", "no such path", "not JSON"])
def test_the_same_words_in_errors(both: tuple[LlamaServer, LlamaServer], name: str) -> None:
    path, body = REQUESTS[name]
    real, paced = (send(address(server), path, body).json()["error"] for server in both)
    if name == "not JSON":  # The parser's own words, so only their beginning.
        real["message"], paced["message"] = (one["message"][:44] for one in (real, paced))
    assert paced == real


def test_props(both: tuple[LlamaServer, LlamaServer]) -> None:
    real, paced = (send(address(server), "/props").json() for server in both)
    assert shape(paced) == shape(real)
    for key in ("total_slots", "model_path", "model_alias", "endpoint_slots", "endpoint_metrics", "is_sleeping"):
        assert paced[key] == real[key]
    assert paced["default_generation_settings"] == real["default_generation_settings"]


def test_metrics(both: tuple[LlamaServer, LlamaServer]) -> None:
    real, paced = (send(address(server), "/metrics") for server in both)
    comments = [[line for line in one.body.decode().splitlines() if line.startswith("#")] for one in (real, paced)]
    assert comments[1] == comments[0]
    assert list(paced.headers) == list(real.headers)


def test_the_cache_counts_alike(both: tuple[LlamaServer, LlamaServer]) -> None:
    for server in both:
        answers = [send(address(server), CHAT, {**ASKED, "cache_prompt": flag}).json() for flag in (False, True, False)]
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
        assert cached == [0, answers[0]["usage"]["prompt_tokens"] - 1, 0]
        assert all(a["timings"]["cache_n"] + a["timings"]["prompt_n"] == a["usage"]["prompt_tokens"] for a in answers)


def test_the_timings_have_one_arithmetic(both: tuple[LlamaServer, LlamaServer]) -> None:
    for server in both:
        for tokens in (1, 4):
            timings = send(address(server), CHAT, {**ASKED, "max_tokens": tokens, "ignore_eos": True}).json()["timings"]
            steps = tokens - 1
            assert timings["predicted_n"] == tokens
            assert timings["predicted_per_second"] == pytest.approx(steps / timings["predicted_ms"] * 1e3)
            assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / steps if steps else 0)
            assert timings["prompt_per_second"] == pytest.approx(timings["prompt_n"] / timings["prompt_ms"] * 1e3)
            assert (timings["predicted_ms"] == 0.001) is (tokens == 1)


def test_a_kept_connection_has_the_same_headers(both: tuple[LlamaServer, LlamaServer]) -> None:
    seen = []
    for server in both:
        connection = http.client.HTTPConnection(*address(server), timeout=60)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        seen.append((answer.headers.items(), answer.read()))
        connection.close()
    assert seen[1] == seen[0]


def test_the_words_of_the_log(both: tuple[LlamaServer, LlamaServer]) -> None:
    for server in both:
        log = server.log_path.read_text(encoding="utf-8", errors="replace")
        assert re.search(
            r"^\d+\.\d\d\.\d{3}\.\d{3} I srv  llama_server: listening on http://127\.0\.0\.1:\d+$", log, re.MULTILINE
        )
        assert re.search(
            r"I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'", log
        )
        assert "srv  llama_server: model loaded" in log


@pytest.mark.parametrize(
    "args",
    [["--bogus"], ["--ctx-size=4"], ["--no-mmap"], ["-c"], ["-c", "x"], ["--draft-max", "4"], ["-m", "/no/such.gguf"]],
)
def test_the_same_refusals(binary: str, program: str, args: list[str]) -> None:
    runs = [
        subprocess.run(
            [one, *args, "--port", "0"][: None if args != ["-c"] else 2],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for one in (binary, program)
    ]
    assert [run.returncode for run in runs] == [1, 1]
    real, paced = (run.stderr.splitlines() for run in runs)
    if args[0] == "-m":
        # Times and hints aside, the lines that say why.
        said = [
            [line.split(" ", 1)[1] for line in lines if "failed to load model, " in line] for lines in (real, paced)
        ]
        assert said[0] == said[1] != []
    else:
        assert paced[0] == real[0]


def test_the_version_has_the_same_form(binary: str, program: str) -> None:
    for one in (binary, program):
        run = subprocess.run([one, "--version"], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0
        assert run.stdout == ""
        assert re.match(r"version: \S+ \(build \d+, commit \w+\)\nbuilt with .* for Linux \w+\n", run.stderr)


def test_every_flag_of_the_real_one_is_known(binary: str) -> None:
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=60, check=False).stdout
    named = set()
    for line in text.splitlines():
        if re.match(r"--?[A-Za-z]", line):
            head = re.match(r"(?:--?[A-Za-z0-9][\w.\-]*(?:,\s*)?)+", line)
            named |= set(re.findall(r"--?[A-Za-z0-9][\w.\-]*", head.group())) if head else set()
    assert len(named) > 300
    assert named - SWITCHES - VALUED == {"--control-vector-layer-range"}


def test_both_end_cleanly_on_sigterm(binary: str, program: str, model: str, tmp_path: Path) -> None:
    for number, one in enumerate((binary, program)):
        server = started(one, model, tmp_path / f"{number}.log", "-t", "1")
        send(address(server), CHAT, ASKED)
        asyncio.run(server.stop())
        assert server.exit_status() == "exit code 0"
