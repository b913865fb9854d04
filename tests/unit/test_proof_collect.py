"""The collector of the proof: its plan, what it takes up again, and the stopper that slows one process."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

PROOF = Path(__file__).parents[2] / "benchmarks" / "proof"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"proof_{name}", PROOF / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


collect: Any = load("collect")


def test_the_plan() -> None:
    assert collect.plan_of("none*2, slow5,hog*1") == ["none", "none", "slow5", "hog"]
    assert collect.plan_of("slow2.5") == ["slow2.5"]
    with pytest.raises(ValueError, match="'fast' in the plan"):
        collect.plan_of("none,fast")


def test_only_sessions_with_their_last_line_are_finished(tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    assert collect.finished(out) == set()
    out.write_text(
        '{"kind": "header"}\n{"kind": "run", "session": 0}\n{"kind": "session", "session": 0}\n'
        '{"kind": "run", "session": 1}\n{"kind": "sess'
    )
    assert collect.finished(out) == {0}


def test_the_stopper_leaves_its_process_running_and_says_what_it_did() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        stopper = subprocess.Popen(
            [sys.executable, str(PROOF / "slower.py"), str(sleeper.pid), "0.2"], stdout=subprocess.PIPE, text=True
        )
        stopped = False
        for _ in range(4000):
            stopped = Path(f"/proc/{sleeper.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
            if stopped:
                break
            time.sleep(0.002)
        stopper.terminate()
        told, _ = stopper.communicate(timeout=60)
        assert stopped
        assert 0 <= float(told) < 1
        assert Path(f"/proc/{sleeper.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T"
    finally:
        os.kill(sleeper.pid, signal.SIGKILL)
        sleeper.wait()


def test_the_stopper_refuses_a_share_that_would_stop_it_all() -> None:
    done = subprocess.run(
        [sys.executable, str(PROOF / "slower.py"), "1", "0.95"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "share lies between" in done.stderr
