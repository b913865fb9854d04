"""Slowing a server down from outside: what is asked, what is done, and that nothing is left stopped or limited."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import Device, FakeNvml, NVMLError

from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.slowdown import Planted, Slowdown, limits, stopper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOPPER = Path(stopper.__file__)
_MUCH = 0.8


@pytest.mark.parametrize(
    ("text", "way", "size", "words"),
    [
        ("pause:10%", "pause", 0.1, "10 % slower (pause)"),
        ("pace:2.5%", "pace", 0.025, "2.5 % slower (pace)"),
        ("threads:3", "threads", 3, "3 threads (threads)"),
        ("gpu-power:150", "gpu-power", 150, "150 W (gpu-power)"),
        ("gpu-clock:1500", "gpu-clock", 1500, "1500 MHz (gpu-clock)"),
    ],
)
def test_what_is_asked(text: str, way: str, size: float, words: str) -> None:
    found = Slowdown.parse(text)
    assert found.size == pytest.approx(size)
    assert (str(found.way), found.words) == (way, words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pause",
        "pause:10",
        "pause:0%",
        "pause:90%",
        "pause:-1%",
        "threads:2.5",
        "threads:10%",
        "sleep:10%",
        "gpu-power:0",
    ],
)
def test_what_cannot_be_asked(text: str) -> None:
    with pytest.raises(InputError, match="--llmbench-canary"):
        Slowdown.parse(text)


def test_threads_and_pace_change_the_start_alone() -> None:
    assert Slowdown.parse("threads:3").changes() == (("-t", "3"),)
    assert Slowdown.parse("pause:10%").changes() == ()
    slower = Slowdown.parse("pace:50%").environment((("A", "1"), ("LLMBENCH_PACED", '{"tok_s": 10}')))
    assert slower == (("A", "1"), ("LLMBENCH_PACED", '{"tok_s": 10, "speed": 0.5}'))
    assert Slowdown.parse("pause:50%").environment((("A", "1"),)) == (("A", "1"),)
    with pytest.raises(InputError, match="has no LLMBENCH_PACED whose pace"):
        Slowdown.parse("pace:50%").environment((("A", "1"),))


# ---- stopping ----


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        time.sleep(0.005)
    pytest.fail("it never came")


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process in a group of its own, as servers are."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def helper_of(sleeper: int, *, share: float = _MUCH) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(STOPPER), str(sleeper), str(share), "--group", "--while-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


@pytest.mark.parametrize("how", ["input ends", "terminated", "helper killed", "worker killed"])
def test_nothing_is_left_stopped_however_it_ends(sleeper: int, how: str) -> None:
    helper = helper_of(sleeper)
    worker = child_of(helper.pid)
    wait_for(lambda: state(sleeper) == "T")
    assert helper.stdin is not None
    match how:
        case "input ends":
            helper.stdin.close()
        case "terminated":
            helper.terminate()
        case "helper killed":
            helper.kill()
        case _:
            os.kill(worker, signal.SIGKILL)
    assert helper.stdout is not None
    said = helper.stdout.read().strip()
    helper.wait(timeout=60)
    helper.stdout.close()
    wait_for(lambda: not Path(f"/proc/{worker}").exists() or state(worker) == "Z")
    assert state(sleeper) != "T"
    if how in ("input ends", "terminated"):
        assert 0 < float(said) < 1
        assert helper.returncode == 0
    elif how == "worker killed":
        assert said == "broken off"
        assert helper.returncode == 1
    with contextlib.suppress(BrokenPipeError):
        helper.stdin.close()


def test_a_planted_pause_tells_its_share(sleeper: int) -> None:
    planted = Planted(Slowdown.parse("pause:50%"))
    end = planted.on(sleeper)
    assert end is not None
    wait_for(lambda: state(sleeper) == "T")
    end()
    assert state(sleeper) != "T"
    (share,) = planted.to_json()["stopped"]
    assert 0 < share < 1
    assert planted.problems == []


def test_a_server_that_goes_first_is_no_matter(sleeper: int) -> None:
    planted = Planted(Slowdown.parse("pause:50%"))
    end = planted.on(sleeper)
    assert end is not None
    wait_for(lambda: state(sleeper) == "T")
    os.kill(sleeper, signal.SIGKILL)
    end()


def test_our_own_group_is_never_stopped() -> None:
    with pytest.raises(InputError, match="own process group"):
        Planted(Slowdown.parse("pause:50%")).on(os.getpid())


def test_other_ways_need_no_helper(sleeper: int) -> None:
    assert Planted(Slowdown.parse("threads:2")).on(sleeper) is None


# ---- the GPU's limits ----


class Limited(FakeNvml):
    """With limits, as NVML documents them: mW and MHz."""

    def nvmlDeviceGetPowerManagementLimitConstraints(self, device: Device) -> list[int]:  # noqa: N802
        self._call("nvmlDeviceGetPowerManagementLimitConstraints", device)
        return [100_000, 180_000]

    def nvmlDeviceGetPowerManagementLimit(self, device: Device) -> int:  # noqa: N802
        self._call("nvmlDeviceGetPowerManagementLimit", device)
        return device.limit_mw

    def nvmlDeviceSetPowerManagementLimit(self, device: Device, limit: int) -> None:  # noqa: N802
        self._call("nvmlDeviceSetPowerManagementLimit", device)
        device.limit_mw = limit

    def nvmlDeviceSetGpuLockedClocks(self, device: Device, least: int, most: int) -> None:  # noqa: N802
        self._call("nvmlDeviceSetGpuLockedClocks", device)
        device.clocks[1] = most

    def nvmlDeviceResetGpuLockedClocks(self, device: Device) -> None:  # noqa: N802
        self._call("nvmlDeviceResetGpuLockedClocks", device)
        device.clocks[1] = 2500


def test_limits_are_put_back_also_after_an_error() -> None:
    one, two = Device("GPU-1"), Device("GPU-2")
    nvml = Limited(one, two)
    with limits.held(nvml, "power", 150, ["GPU-1", "GPU-2"]):
        assert (one.limit_mw, two.limit_mw) == (150_000, 150_000)
    assert (one.limit_mw, two.limit_mw) == (180_000, 180_000)
    with pytest.raises(ZeroDivisionError), limits.held(nvml, "clock", 1200, ["GPU-1"]):
        _ = 1 / (one.clocks[1] - 1200)
    assert one.clocks[1] == 2500
    assert nvml.asked["nvmlShutdown"] == 2


def test_a_limit_that_may_not_be_set_leaves_the_others_as_they_were() -> None:
    one, two = Device("GPU-1"), Device("GPU-2", errors={"nvmlDeviceSetPowerManagementLimit": 4})
    with (
        pytest.raises(NVMLError, match="Insufficient Permissions"),
        limits.held(Limited(one, two), "power", 150, ["GPU-1", "GPU-2"]),
    ):
        pytest.fail("not reached")
    assert one.limit_mw == 180_000


@pytest.mark.parametrize("watts", [50, 180, 400])
def test_a_power_limit_that_slows_nothing_is_refused(watts: float) -> None:
    one = Device("GPU-1")
    with pytest.raises(ValueError, match="is no lower limit"), limits.held(Limited(one), "power", watts, ["GPU-1"]):
        pytest.fail("not reached")
    assert one.limit_mw == 180_000


def test_a_machine_without_nvml_says_so_and_goes_on_without() -> None:
    planted = Planted(Slowdown.parse("gpu-power:150"))
    with pytest.raises(LlmbenchError, match="the GPU's limit was not set: "):
        planted.limit(["GPU-of-nobody"])
    planted.close()
    assert planted.problems == []
    with pytest.raises(InputError, match="the card names no GPU"):
        planted.limit([])


def test_the_helper_holds_the_limit_while_its_input_is_open(tmp_path: Path) -> None:
    (tmp_path / "log_nvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def __getattr__(name):\n"
        "    if not name.startswith('nvml'): raise AttributeError(name)\n"
        "    def call(*args):\n"
        f"        open({str(tmp_path / 'calls')!r}, 'a').write(f'{{name}} {{args}}\\n')\n"
        "        return {'nvmlDeviceGetHandleByUUID': 1}.get(name)\n"
        "    return call\n"
    )
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pytest_llmbench.slowdown import limits; sys.exit(limits.main(module='log_nvml'))"
    for end in ("close", "terminate"):
        helper: Any = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), "clock", "1200", "GPU-1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with helper:
            assert helper.stdout.readline() == "ready\n"
            assert "Reset" not in (tmp_path / "calls").read_text()
            helper.stdin.close() if end == "close" else helper.terminate()
            assert helper.wait(timeout=60) == 0
        assert "nvmlDeviceResetGpuLockedClocks (1,)" in (tmp_path / "calls").read_text()
        (tmp_path / "calls").unlink()
