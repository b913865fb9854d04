"""The guard's word on recorded samples: who disturbs, what is no disturbance, and when nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.watch import judge, quiet
from pytest_llmbench.watch.settings import Ignored, Settings


def process(name: str, share: float, *, kind: str = "foreign", pid: int = 50, dt_s: float = 0.5) -> dict[str, Any]:
    used = share * dt_s
    return {"pid": pid, "name": name, "cpu_s": used, "over_s": dt_s, "in_window_s": used, "kind": kind}


def sample(*processes: dict[str, Any], dt_s: float = 0.5, **changes: Any) -> dict[str, Any]:
    """A quiet sample of an eight-core machine whose server uses four cores; changes replace keys."""
    attributed = sum(entry["in_window_s"] for entry in processes)
    record = {
        "t_ns": 0,
        "dt_s": dt_s,
        "cpus": 8,
        "cpus_ours": 8,
        "busy_s": 4 * dt_s + attributed,
        "ours_s": 4 * dt_s,
        "irq_s": 0.0,
        "steal_s": 0.0,
        "foreign_s": attributed,
        "attributed_s": attributed,
        "full_look": True,
        "processes": list(processes),
        "reaped": [],
        "pressure_s": {"cpu_some": 0.01, "memory_some": 0.0},
        "server_rss_bytes": 1000,
        "memory_available_bytes": 9000,
    }
    return record | changes


def word(*samples: dict[str, Any], settings: Settings | None = None, **more: Any) -> tuple[str, str | None]:
    found = judge.judge(samples, settings or Settings(), **more)
    return found[0], found[1]


def test_a_quiet_run_is_clean() -> None:
    found, reason, details = judge.judge([sample(process("idle", 0.05)) for _ in range(4)], Settings())
    assert (found, reason) == ("clean", None)
    assert details["samples"] == 4
    assert details["samples_above_limit"] == 0
    assert details["busiest_foreign"] == {"pid": 50, "name": "idle", "kind": "foreign", "share": 0.05}
    assert details["server_rss_peak_bytes"] == 1000
    assert details["ours_share"] == 4.0


def test_two_samples_in_a_row_disturb_and_name_the_process() -> None:
    found, reason = word(sample(), sample(process("indexer", 0.4)), sample(process("indexer", 0.97)), sample())
    assert found == "disturbed"
    assert reason == "indexer (pid 50) up to 97% of one core; 2 samples in a row above the limit"


def test_one_sample_above_is_clean_and_so_are_two_apart() -> None:
    high, low = sample(process("indexer", 0.9)), sample()
    assert word(low, high, low)[0] == "clean"
    assert word(high, low, high)[0] == "clean"


def test_different_processes_in_a_row_are_a_disturbance_too() -> None:
    found, reason, details = judge.judge(
        [sample(process("a", 0.5, pid=1)), sample(process("b", 0.4, pid=2))], Settings()
    )
    assert found == "disturbed"
    assert details["disturbed_by"] == [{"who": "a (pid 1)", "share": 0.5}, {"who": "b (pid 2)", "share": 0.4}]
    assert reason is not None
    assert "a (pid 1)" in reason
    assert "b (pid 2)" in reason


def test_exactly_the_limit_is_not_above_it() -> None:
    assert word(*[sample(process("a", 0.25))] * 3)[0] == "clean"
    assert word(*[sample(process("a", 0.26))] * 3)[0] == "disturbed"


def test_many_small_processes_are_no_disturbance() -> None:
    many = [process(f"p{pid}", 0.1, pid=pid) for pid in range(10)]
    assert word(*[sample(*many)] * 4)[0] == "clean"


@pytest.mark.parametrize("kind", ["ignored", "kernel"])
def test_ignored_and_kernel_work_is_reported_and_disturbs_nothing(kind: str) -> None:
    samples = [sample(process("kcompactd0", 1.0, kind=kind), process("x", 0.1, pid=51)) for _ in range(3)]
    found, _, details = judge.judge(samples, Settings())
    assert found == "clean"
    assert details["busiest"]["name"] == "kcompactd0"
    assert details["busiest"]["kind"] == kind
    assert details["busiest_foreign"]["name"] == "x"


def test_work_without_a_pid_disturbs_and_names_who_may_have_done_it() -> None:
    hidden = sample(foreign_s=0.5, busy_s=2.5, reaped=[{"name": "make", "cpu_s": 0.4}])
    found, reason = word(hidden, hidden)
    assert found == "disturbed"
    assert reason is not None
    assert "work without a pid" in reason
    assert "children of make" in reason
    assert "100% of one core" in reason


def test_the_skew_of_two_counters_is_no_work_without_a_pid() -> None:
    slightly = sample(foreign_s=0.5 * 0.33)  # above the limit, within what ticks of eight CPUs may err
    assert word(slightly, slightly, slightly)[0] == "clean"


def test_work_in_samples_without_a_full_look_is_named_by_the_next_look() -> None:
    unread = sample(foreign_s=0.5, busy_s=2.5, full_look=False)
    found, reason = word(unread, sample(process("hog", 1.0)))
    assert found == "disturbed"
    assert reason is not None
    assert reason.startswith("hog (pid 50) up to 100%")
    assert judge.UNNAMED not in reason
    assert judge.UNNAMED in str(word(unread, unread)[1])


def test_steal_time_disturbs() -> None:
    found, reason = word(*[sample(steal_s=0.2)] * 2)
    assert found == "disturbed"
    assert reason is not None
    assert "steal time" in reason
    assert "40%" in reason


def test_pressure_disturbs_only_where_our_own_work_does_not_explain_it() -> None:
    waiting: dict[str, Any] = {"pressure_s": {"cpu_some": 0.4}}
    found, reason = word(*[sample(**waiting)] * 2)
    assert found == "disturbed"
    assert "CPU pressure" in str(reason)
    assert word(*[sample(**waiting, cpus_ours=4)] * 2)[0] == "clean", "ours fill the CPUs that they may use"
    assert word(*[sample(**waiting, busy_s=3.9)] * 2)[0] == "clean", "all CPUs are busy"
    io: dict[str, Any] = {"pressure_s": {"cpu_some": 0.0, "io_full": 0.4}}
    found, _, details = judge.judge([sample(**io)] * 2, Settings())
    assert found == "clean", "reading the model is the setup's own work"
    assert details["max_pressure"]["io_full"] == 0.8


def test_a_machine_without_pressure_figures_is_judged_by_the_rest() -> None:
    assert word(*[sample(pressure_s={})] * 2)[0] == "clean"


def test_a_short_rest_joins_the_sample_before_it() -> None:
    # 30 ms at 100 % are three ticks: no share can be told from them.
    short = sample(process("cron", 1.0, dt_s=0.03), dt_s=0.03)
    assert word(sample(process("cron", 0.3)), sample(), short)[0] == "clean"
    windows = judge.merge([sample(process("a", 0.2)), short, sample()], 0.5)
    assert [round(window["dt_s"], 2) for window in windows] == [0.53, 0.5]
    assert windows[0]["foreign_s"] == pytest.approx(0.13)
    assert judge.merge([short, sample()], 0.5)[0]["dt_s"] == pytest.approx(0.53)


def test_joining_adds_up_a_process_by_its_pid() -> None:
    joined = judge.join(sample(process("a", 0.4)), sample(process("a", 0.2), process("b", 0.1, pid=51)))
    by_name = {entry["name"]: entry for entry in joined["processes"]}
    assert by_name["a"]["in_window_s"] == pytest.approx(0.3)
    assert by_name["a"]["over_s"] == 1.0
    assert by_name["b"]["in_window_s"] == pytest.approx(0.05)


def test_a_run_of_one_sample_is_judged_with_the_one_before_it() -> None:
    high = sample(process("hog", 0.9))
    found, _, details = judge.judge([high], Settings(), before=high)
    assert found == "disturbed"
    assert details["judged_with_the_sample_before"] is True
    assert details["samples_above_limit"] == 1, "of the run's own"
    assert word(high, before=sample())[0] == "clean"
    assert word(sample(), before=high)[0] == "clean"


def test_too_short_to_watch() -> None:
    assert word() == ("not watched", "too short to watch: 0 ms")
    assert word(sample(dt_s=0.04), before=sample()) == ("not watched", "too short to watch: 40 ms")
    assert word(sample(dt_s=0.4)) == ("not watched", "too short to watch: 1 sample of 0.40 s")
    assert word(sample(dt_s=0.4), before=sample(dt_s=0.02))[0] == "not watched"


def test_a_guard_that_is_off_still_reports() -> None:
    found, reason, details = judge.judge([sample(process("hog", 0.9))] * 3, Settings(guard=False))
    assert (found, reason) == ("not watched", "the guard is off (watch.guard in the card)")
    assert details["samples_above_limit"] == 3


def test_settings_change_the_rule() -> None:
    samples = [sample(process("a", 0.4))] * 3
    assert word(*samples, settings=Settings(limit_share=0.5))[0] == "clean"
    assert word(*samples, settings=Settings(consecutive=4), before=None)[0] == "not watched"
    assert word(*samples, sample(), settings=Settings(consecutive=4))[0] == "clean"


def test_throttling_is_a_reason_of_its_own() -> None:
    gpu: dict[str, Any] = {
        "uuid": "GPU-1-2",
        "throttle": 0x40,
        "missing": {},
        **dict.fromkeys(
            ("memory_used_bytes", "power_w", "power_limit_w", "energy_j", "temperature_c", "sm_mhz", "memory_mhz", "utilization")
        ),
    }  # fmt: skip
    found, reason = word(*[sample(gpus=[gpu])] * 3)
    assert found == "disturbed"
    assert reason == "GPU GPU-1 throttled in 100% of the samples (thermal slowdown by the hardware)"


def test_settings_from_a_card() -> None:
    settings = Settings.of({"limit_share": 0.5, "ignore": [{"process": "index*", "reason": "the box's own"}]})
    assert settings.ignore == (Ignored("index*", "the box's own"),)
    assert settings.ignored("indexer") == "the box's own"
    assert settings.ignored("reindexer", "x") is None
    assert Settings.of(settings.to_json()) == settings
    with pytest.raises(TypeError, match="limit"):
        Settings.of({"limit": 1})


def test_quiet_check_counts_samples_and_names() -> None:
    def record(*shares: tuple[str, float], without: float = 0.0, steal: float = 0.0) -> dict[str, Any]:
        listed: list[dict[str, Any]] = [{"name": name, "share": share} for name, share in shares]
        return {
            "limit_share": 0.25,
            "processes": [entry for entry in listed if entry["share"] > 0.25],
            "busiest": listed[0] if listed else None,
            "without_pid": without,
            "steal": steal,
        }

    found = quiet.summarise(
        [
            record(("indexer", 7.6), ("git", 0.5)),
            record(("indexer", 0.3), ("indexer", 0.4)),
            record(("sshd", 0.1)),
            record(without=0.6, steal=0.3),
        ]
    )
    assert found == {
        "samples": 4,
        "above": 2,
        "who": [
            {"name": "indexer", "samples": 2, "max_share": 7.6},
            {"name": "git", "samples": 1, "max_share": 0.5},
        ],
        "max_share": 7.6,
        "without_pid_above": 1,
        "steal_above": 1,
    }
    assert quiet.summarise([])["max_share"] is None
