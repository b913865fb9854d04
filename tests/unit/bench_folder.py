"""Whole sessions of pytest against a paced server: what a user types, and what they see."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import pytest_llmbench.session  # noqa: F401 - before a session in this process would load it and throw it away again

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
SUITES = REPOSITORY / "bench_suites"

# A test machine is busy: the client's and the paced server's clocks may part by more than on a quiet one.
LOOSE = {"decode_within": 5.0, "ttft_above_ms": 20_000}


class Bench:
    """A folder with suites, a paced server as the engine, and cards for it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.path = pytester, pytester.path
        for name in ("test_decode.py", "test_prefill.py"):
            shutil.copy(SUITES / name, self.path / name)
        self.engine = self.path / "paced-engine"
        self.engine.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            "from pytest_llmbench.paced.__main__ import main\nsys.exit(main())\n",
            encoding="utf-8",
        )
        self.engine.chmod(0o755)
        (self.path / "tiny.gguf").write_bytes(b"GGUF" + bytes(60))

    def card(self, name: str = "card", *, pace: dict[str, Any] | None = None, **changes: Any) -> Path:
        """Write a card of a small, fast plan; changes replace whole sections."""
        content: dict[str, Any] = {
            "llmbench_card": 1,
            "id": name,
            "title": f"Paced {name}",
            "hardware": {"gpus": []},
            "model": {"name": "Tiny", "file": {"path": str(self.path / "tiny.gguf")}},
            "engine": {"kind": "llama-server", "binary": {"path": str(self.engine)}},
            "server": {
                "args": ["-m", "tiny.gguf", "-c", "8192", "-np", "1"],
                "env": {"LLMBENCH_PACED": json.dumps({"tok_s": 1000, "ttft_ms": 5, **(pace or {})})},
            },
            "sampling": {"values": {"temperature": 0.5}, "seed": 7},
            "plan": {
                "parts": ["decode", "prefill"],
                "decode": {"runs": 2, "max_tokens": 32},
                "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
            },
            "client_check": LOOSE,
            "validity": {"client_lag_ms": 5000},
            "watch": {"guard": False},
        }
        path = self.path / f"{name}.json"
        path.write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return path

    def run(
        self, *args: str, card: Path | None = None, paths: tuple[str, ...] = ("test_decode.py", "test_prefill.py")
    ) -> pytest.RunResult:
        """Run pytest as a user does, in a process of its own."""
        setup = ["--setup", str(card)] if card is not None else []
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *paths, *setup, *args, timeout=120)

    def run_here(
        self, *args: str, card: Path | None = None, paths: tuple[str, ...] = ("test_decode.py", "test_prefill.py")
    ) -> pytest.RunResult:
        """Run pytest in this process: where no server comes up. It saves a start of Python and its imports."""
        setup = ["--setup", str(card)] if card is not None else []
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *paths, *setup, *args)

    def report(self, card: str = "card") -> dict[str, Any]:
        """The only session's report of a card."""
        (found,) = (self.path / ".llmbench" / "runs").glob(f"*/{card}/report.json")
        return dict(json.loads(found.read_text(encoding="utf-8")))

    def servers(self) -> list[int]:
        """Processes that still run this folder's engine; a zombie has no command line any more."""
        return [p.pid for p in psutil.process_iter(["cmdline"]) if str(self.engine) in (p.info["cmdline"] or ())]


@pytest.fixture
def bench_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name in [n for n in os.environ if n.startswith("LLMBENCH_")]:
        monkeypatch.delenv(name)
    return Bench(pytester)


@pytest.fixture
def make_card(bench_folder: Bench) -> Callable[..., Path]:
    return bench_folder.card
