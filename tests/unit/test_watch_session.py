"""The helper process and the session's side of it: answers, files, and an end in every case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.card.watch import Watch as CardWatch
from pytest_llmbench.watch import Unwatched
from pytest_llmbench.watch.judge import judge
from pytest_llmbench.watch.session import ERRORS, QUIET, TELEMETRY, SessionWatch, start_watch
from pytest_llmbench.watch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
UNIT = str(Path(__file__).parent)
FAST = Settings(interval_s=0.1, quiet_interval_s=0.2, limit_share=1000.0)
"""A limit that no machine passes: the word depends on nothing else that runs here."""


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[SessionWatch]:
    started = start_watch(tmp_path / "run", FAST, env={})
    assert isinstance(started, SessionWatch)
    yield started
    started.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def until(what: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_is_watched_and_can_be_judged_again_from_the_file(watch: SessionWatch, tmp_path: Path) -> None:
    watch.set_server(os.getpid())
    watch.begin("decode[code] run 1 attempt 1")
    until(lambda: sum(s["run"] is not None for s in lines(tmp_path / "run" / TELEMETRY)) >= 5)
    word = watch.end()
    assert (word.word, word.reason) == ("clean", None)
    assert word.details["server_rss_peak_bytes"] > 10_000_000
    assert word.details["memory_available_min_bytes"] > 0
    records = lines(tmp_path / "run" / TELEMETRY)
    marks = [record["mark"] for record in records if record["mark"]]
    assert marks == ["begin", "end"]
    own = [record for record in records if record["run"] == "decode[code] run 1 attempt 1"]
    assert judge(own, FAST)[2] == word.details
    stamps = [record["t_ns"] for record in records]
    assert stamps == sorted(stamps)
    assert abs(stamps[-1] - time.monotonic_ns()) < 60e9, "the same clock as ours"


def test_the_helper_is_ours_and_the_record_says_what_is_watched(watch: SessionWatch) -> None:
    assert watch.facts["watched"] is True
    assert watch.facts["settings"]["interval_s"] == 0.1
    assert watch.facts["gpu"]["devices"] == []
    assert watch.facts["gpu"]["note"]
    sample = watch.now()
    assert sample["full_look"] is True
    assert watch.pid not in {process["pid"] for process in sample["processes"]}


def test_quiet_check_is_kept_beside(watch: SessionWatch, tmp_path: Path) -> None:
    until(lambda: watch.quiet()["samples"] >= 2)
    assert len(lines(tmp_path / "run" / QUIET)) >= 2
    assert watch.quiet()["above"] == 0
    watch.close()
    assert watch.quiet()["samples"] == len(lines(tmp_path / "run" / QUIET))


def test_the_gpu_of_the_card_is_watched_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", UNIT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-somebody-else")
    env = {"CUDA_VISIBLE_DEVICES": "GPU-11111111-aaaa"}
    watch = start_watch(tmp_path, FAST, env=env, nvml="fake_nvml")
    assert watch.facts["gpu"]["note"] == "CUDA_VISIBLE_DEVICES=GPU-11111111-aaaa"
    watch.begin("x")
    until(lambda: len(lines(tmp_path / TELEMETRY)) >= 4)
    (gpu,) = watch.end().details["gpus"]
    watch.close()
    assert gpu["memory_peak_bytes"] == 5_000_000_000
    assert gpu["energy_j"] == 0.0, "a counter that stands still is known to be 0"
    assert gpu["power_max_w"] == 150.0


def test_close_ends_the_helper_and_later_calls_are_answered(watch: SessionWatch) -> None:
    pid = watch.pid
    assert pid is not None
    watch.close()
    assert not alive(pid)
    watch.close()
    assert watch.now() == {}
    assert watch.end().word == "not watched"


def test_a_lost_helper_is_said_and_started_again(watch: SessionWatch) -> None:
    watch.set_server(os.getpid())
    for _ in range(2):
        assert watch.pid is not None
        pid = watch.pid
        watch.begin("x")
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: not alive(pid))
        word = watch.end()
        assert word.word == "not watched"
        assert word.reason == "the watch's helper ended (exit -9)"
        watch.begin("y")
        assert watch.now()["server_rss_bytes"] > 0, "the new one knows the server"
        until(lambda: watch.now()["dt_s"] > 0.01)
        watch.end()
    assert watch.facts["helper_starts"] == 3


def test_a_helper_that_does_not_answer_is_given_up(watch: SessionWatch) -> None:
    pid = watch.pid
    assert pid is not None
    watch.begin("x")
    os.kill(pid, signal.SIGSTOP)
    watch.answer_s = 0.2
    word = watch.end()
    assert word.word == "not watched"
    assert "no answer" in str(word.reason)
    assert not alive(pid)


def test_the_helper_survives_the_signals_that_end_pytest(watch: SessionWatch) -> None:
    assert watch.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watch.pid, number)
    assert watch.now()["cpus"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_helper_ends_with_its_parent_even_where_the_pipe_stays_open(tmp_path: Path, number: int) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from pytest_llmbench.watch.session import start_watch\nfrom pytest_llmbench.watch.settings import Settings\n"
        f"watch = start_watch(Path({str(tmp_path)!r}), Settings(interval_s=0.1), env={{}})\n"
        "stdin = watch._process.stdin.fileno()\nos.set_inheritable(stdin, True)\n"
        # A child that holds the pipe open after we are gone.
        "import subprocess\nchild = subprocess.Popen(['sleep', '30'], close_fds=False, start_new_session=True)\n"
        "print(watch.pid, child.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ) as parent:
        assert parent.stdout is not None
        helper, child = map(int, parent.stdout.readline().split())
        try:
            assert alive(helper)
            parent.send_signal(number)
            parent.wait(timeout=10)
            until(lambda: not alive(helper))
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_system_without_proc_is_not_watched_and_says_so(tmp_path: Path) -> None:
    watch = start_watch(tmp_path, FAST, env={}, proc=str(tmp_path / "nothing"))
    assert isinstance(watch, Unwatched)
    watch.begin("x")
    watch.set_server(1)
    word = watch.end()
    assert word.word == "not watched"
    assert "cannot be watched cheaply" in str(word.reason)
    assert watch.facts == {"watched": False, "reason": word.reason}
    assert (watch.now(), watch.quiet()) == ({}, {})
    watch.close()


def test_a_helper_that_cannot_work_says_why(tmp_path: Path) -> None:
    (tmp_path / TELEMETRY).mkdir()  # a folder where the file should go
    watch = start_watch(tmp_path, FAST, env={})
    assert isinstance(watch, Unwatched)
    assert "IsADirectoryError" in str(watch.reason)


def test_a_helper_that_breaks_leaves_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('a json of the user')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    watch = start_watch(tmp_path / "run", FAST, env={})
    assert isinstance(watch, Unwatched)
    assert watch.reason == "the watch's helper ended (exit 1: ImportError: a json of the user)"
    assert "Traceback" in (tmp_path / "run" / ERRORS).read_text(encoding="utf-8")


def test_nothing_is_left_beside_the_records(watch: SessionWatch, tmp_path: Path) -> None:
    watch.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {TELEMETRY, QUIET}


def test_the_section_in_the_docs_is_a_cards_section() -> None:
    text = (REPOSITORY / "docs" / "watch.md").read_text(encoding="utf-8")
    example = json.loads(text.partition("```json\n")[2].partition("```")[0])
    section = CardWatch.model_validate_json(json.dumps(example["watch"]))
    settings = Settings.of(section.model_dump())
    assert settings.ignored("python3 (indexer.py)", "python3") == "the box's own service, accepted by its owner"
    assert settings.ignored("python3 (other.py)", "python3") is None


def test_the_helper_loads_nothing_heavy() -> None:
    code = (
        "import sys\nimport pytest_llmbench.watch.helper, pytest_llmbench.watch.session\n"
        "print([n for n in ('pytest', 'pydantic', 'httpx', 'psutil', 'pynvml', 'asyncio') if n in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert found.stdout.strip() == "[]"


def test_the_cards_section_is_the_watchs_settings() -> None:
    assert Settings.of(CardWatch().model_dump()) == Settings()
    section = CardWatch.model_validate_json(
        '{"ignore": [{"process": "indexer*", "reason": "the box\'s own"}], "guard": false, "power_cap_share": 0.9}'
    )
    settings = Settings.of(section.model_dump())
    assert settings.ignored("indexer-2") == "the box's own"
    assert (settings.guard, settings.power_cap_share) == (False, 0.9)
