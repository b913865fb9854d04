"""Reading /proc: whose a process is, what it used, and that samples name the right one. On a /proc of our own making."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.watch.counters import Counters, Reading, between
from pytest_llmbench.watch.processes import PAGE_BYTES, TICKS_PER_S, ProcessTable
from pytest_llmbench.watch.sampler import LOOK_EVERY, Sampler
from pytest_llmbench.watch.settings import Ignored, Settings

if TYPE_CHECKING:
    from pathlib import Path

PYTEST, SERVER, KERNEL = 100, 110, 0x00200000


class FakeProc:
    """A /proc folder. Its clock stands still but for ``run``, which lets processes use CPU time."""

    def __init__(self, root: Path, cpus: int = 4) -> None:
        self.root, self.cpus = root, cpus
        self.processes: dict[int, dict[str, Any]] = {}
        self.t_ns, self.idle, self.irq, self.steal, self.waited_us = 10**12, 0, 0, 0, 0
        (root / "pressure").mkdir()
        (root / "meminfo").write_text("MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable: 1000 kB\n")
        self._write_counters()

    def add(self, pid: int, name: str, parent: int = 1, **more: Any) -> None:
        self.processes[pid] = {
            "name": name, "parent": parent, "session": pid, "flags": 0, "ticks": 0, "children": 0, "rss": 0, **more
        }  # fmt: skip
        (self.root / str(pid)).mkdir()
        (self.root / str(pid) / "cmdline").write_bytes(b"\0".join(more.get("command", [name.encode()])))
        self._write(pid)

    def end(self, pid: int, *, waited_for: bool = True) -> None:
        process = self.processes.pop(pid)
        if waited_for and process["parent"] in self.processes:
            self.processes[process["parent"]]["children"] += process["ticks"] + process["children"]
            self._write(process["parent"])
        for name in ("stat", "cmdline"):
            (self.root / str(pid) / name).unlink()
        (self.root / str(pid)).rmdir()

    def run(self, seconds: float, *, hidden: float = 0.0, steal: float = 0.0, **used: float) -> None:
        """Let time pass in which processes use CPU seconds: ``p110=0.4``; hidden: work without a pid."""
        ticks = 0
        for word, cpu_s in used.items():
            pid = int(word[1:])
            self.processes[pid]["ticks"] += round(cpu_s * TICKS_PER_S)
            ticks += round(cpu_s * TICKS_PER_S)
            self._write(pid)
        self.steal += round(steal * TICKS_PER_S)
        all_ticks = round(seconds * TICKS_PER_S) * self.cpus
        self.idle += all_ticks - ticks - round((hidden + steal) * TICKS_PER_S)
        self.t_ns += round(seconds * 1e9)
        self._write_counters()

    def _write(self, pid: int) -> None:
        p = self.processes[pid]
        fields = [p["parent"], pid, p["session"], 0, -1, p["flags"], 0, 0, 0, 0, p["ticks"], 0, p["children"], 0]
        fields += [20, 0, 1, 0, 5, 1000, p["rss"], 99]
        # In place, as the kernel does: the watch keeps the file open.
        (self.root / str(pid) / "stat").write_text(f"{pid} ({p['name']}) S {' '.join(map(str, fields))}\n")

    def _write_counters(self) -> None:
        line = f" 0 0 0 {self.idle} 0 {self.irq} 0 {self.steal} 0 0\n"
        (self.root / "stat").write_text(f"cpu {line}" + "".join(f"cpu{n}{line}" for n in range(self.cpus)) + "intr 0\n")
        for name in ("cpu", "memory", "io"):
            text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self.waited_us}\n"
            (self.root / "pressure" / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    fake = FakeProc(tmp_path)
    fake.add(1, "init")
    fake.add(50, "indexer", ticks=500)
    fake.add(PYTEST, "pytest", parent=60)
    fake.add(SERVER, "llama-server", parent=PYTEST, rss=10)
    monkeypatch.setattr("pytest_llmbench.watch.counters.time.monotonic_ns", lambda: fake.t_ns)
    return fake


def watch(proc: FakeProc, settings: Settings | None = None) -> tuple[Sampler, ProcessTable]:
    table = ProcessTable({PYTEST}, str(proc.root))
    return Sampler(settings or Settings(), Counters(str(proc.root)), table), table


def test_ours_are_the_roots_and_all_that_descends_from_them(proc: FakeProc) -> None:
    _, table = watch(proc)
    assert {process.pid for process in table.ours()} == {PYTEST, SERVER}
    proc.add(111, "worker", parent=SERVER)
    proc.add(112, "grandchild", parent=111)
    proc.add(113, "(odd) name", parent=1, session=SERVER)
    proc.add(51, "foreign", parent=1)
    table.refresh()
    assert {process.pid for process in table.ours()} == {PYTEST, SERVER, 111, 112, 113}
    assert table.all[113].comm == "(odd) name"
    proc.end(111)
    table.refresh()
    assert table.all[112].ours, "a child that outlives its parent stays ours"


def test_server_memory_is_that_of_its_tree(proc: FakeProc) -> None:
    sampler, table = watch(proc)
    assert table.server_rss_bytes() is None
    proc.add(111, "worker", parent=SERVER, rss=5)
    sampler.set_server(SERVER)
    assert sampler.sample()["server_rss_bytes"] == 15 * PAGE_BYTES
    sampler.set_server(None)
    assert sampler.sample()["server_rss_bytes"] is None


def test_a_server_in_a_container_is_ours_once_it_is_named(proc: FakeProc) -> None:
    proc.add(70, "containerd-shim")
    proc.add(71, "llama-server", parent=70, rss=7)
    sampler, table = watch(proc)
    sampler.set_server(71)
    assert table.all[71].ours
    assert not table.all[70].ours
    assert sampler.sample()["server_rss_bytes"] == 7 * PAGE_BYTES


def test_our_own_load_is_no_foreign_work(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    proc.run(0.5, p110=1.5, p100=0.2)
    sample = sampler.sample()
    assert sample["busy_s"] == pytest.approx(1.7)
    assert sample["ours_s"] == pytest.approx(1.7)
    assert sample["foreign_s"] == pytest.approx(0.0, abs=0.001)
    assert not sample["full_look"]
    assert sample["memory_available_bytes"] == 1000 * 1024


def test_a_child_of_ours_that_ended_was_ours_too(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    proc.add(111, "tool", parent=PYTEST)
    proc.run(0.5, p111=0.3)
    sampler.sample()
    proc.run(0.5, p111=0.4)
    proc.end(111)
    sample = sampler.sample()
    assert sample["ours_s"] == pytest.approx(0.4)
    assert sample["foreign_s"] == pytest.approx(0.0, abs=0.001)


def test_a_process_that_wakes_up_is_named_at_once_and_then_read_every_time(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    for _ in range(3):
        proc.run(0.5, p110=1.0)
        assert sampler.sample()["processes"] == []
    proc.run(0.5, p50=0.45, p110=1.0)
    sample = sampler.sample()
    assert sample["full_look"]
    (entry,) = sample["processes"]
    assert (entry["name"], entry["kind"], entry["in_window_s"]) == ("indexer", "foreign", 0.45)
    proc.run(0.5, p50=0.45, p110=1.0)
    again = sampler.sample()
    assert not again["full_look"], "the busy one is read without a look at all"
    assert again["processes"][0]["cpu_s"] == pytest.approx(0.45)
    assert again["processes"][0]["over_s"] == pytest.approx(0.5)


def test_what_it_did_before_this_sample_is_not_put_into_it(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    for _ in range(4):
        proc.run(0.5, p50=0.05)  # below what makes a look
        sampler.sample()
    proc.run(0.5, hidden=0.1, p50=0.05)
    (entry,) = sampler.sample(look=True)["processes"]
    assert (entry["cpu_s"], entry["over_s"]) == (0.25, 2.5)
    assert entry["in_window_s"] == pytest.approx(0.15), "at most all foreign work of this sample"


def test_a_look_comes_every_few_seconds_whatever_happens(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    looks = []
    for _ in range(LOOK_EVERY):
        proc.run(0.5, p50=0.01)
        looks.append(sampler.sample()["full_look"])
    assert looks == [False] * (LOOK_EVERY - 1) + [True]


def test_work_without_a_pid_does_not_make_every_sample_dear(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    looks = []
    for _ in range(8):
        proc.run(0.5, hidden=0.4)
        sample = sampler.sample()
        looks.append(sample["full_look"])
        assert sample["foreign_s"] - sample["attributed_s"] == pytest.approx(0.4)
    assert looks == [True, False, False, False, True, False, False, False]


def test_new_processes_are_read_from_their_first_sample(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    proc.add(80, "cc1")
    proc.run(0.5, p80=0.4)
    (entry,) = sampler.sample()["processes"]
    assert (entry["name"], entry["cpu_s"]) == ("cc1", 0.4)


def test_parents_of_short_lived_processes_are_named(proc: FakeProc) -> None:
    proc.add(80, "make")
    sampler, _ = watch(proc)
    proc.add(81, "cc1", parent=80)
    proc.run(0.5, p81=0.4)
    proc.end(81)
    sample = sampler.sample()
    assert sample["reaped"] == [{"name": "make", "cpu_s": 0.4}]
    assert sample["foreign_s"] == pytest.approx(0.4)


def test_kinds_and_names(proc: FakeProc) -> None:
    proc.add(20, "kcompactd0", parent=2, flags=KERNEL)
    proc.add(21, "md0_resync", parent=2, flags=KERNEL)
    proc.add(30, "python3.12", command=[b"python3.12", b"-X", b"dev", b"/home/x/hog.py", b"--token", b"secret"])
    proc.add(31, "python3", command=[b"python3", b"-mhttp.server"])
    proc.add(32, "bash", command=[b"bash", b"-lc", b"curl -H 'key: secret'"])
    sampler, _ = watch(proc, Settings(ignore=(Ignored("index*", "the box's own"),)))
    proc.run(0.5, p20=0.3, p21=0.3, p30=0.3, p31=0.3, p32=0.3, p50=0.3)
    found = {entry["name"]: (entry["kind"], entry.get("why")) for entry in sampler.sample()["processes"]}
    assert found == {
        "kcompactd0": ("kernel", "a kernel thread that the setup itself drives"),
        "md0_resync": ("foreign", None),
        "python3.12 (hog.py)": ("foreign", None),
        "python3 (-m http.server)": ("foreign", None),
        "bash (-c)": ("foreign", None),
        "indexer": ("ignored", "the box's own"),
    }


def test_steal_and_interrupts_are_apart(proc: FakeProc) -> None:
    sampler, _ = watch(proc)
    proc.irq += 10
    proc.run(0.5, steal=0.2, hidden=0.1)
    sample = sampler.sample()
    assert sample["steal_s"] == pytest.approx(0.2)
    assert sample["irq_s"] == pytest.approx(0.1)
    assert sample["busy_s"] == pytest.approx(0.1)
    assert sample["foreign_s"] == pytest.approx(0.0, abs=0.001)


def test_quiet_record_ignores_nobody(proc: FakeProc) -> None:
    sampler, _ = watch(proc, Settings(ignore=(Ignored("indexer", "the box's own"),)))
    proc.add(20, "kcompactd0", parent=2, flags=KERNEL)
    proc.run(10.0, p50=76.0 / 10, p20=4.0, p110=9.0, hidden=3.0)
    record = sampler.quiet()
    assert record["processes"] == [{"name": "indexer", "share": 0.76}, {"name": "kcompactd0", "share": 0.4}]
    assert record["busiest"] == {"name": "indexer", "share": 0.76}
    assert record["without_pid"] == pytest.approx(0.3)
    proc.run(10.0, p110=9.0)
    assert sampler.quiet()["busiest"] is None


def test_more_processes_than_open_files(proc: FakeProc) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    table = ProcessTable({PYTEST}, str(proc.root), open_files=2)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # noqa: PTH208
    proc.run(0.5, p50=0.3, p110=0.2)
    table.read(table.all.values())
    assert table.all[50].ticks == 530
    proc.end(50)
    table.refresh()
    assert 50 not in table.all


def test_a_pid_that_comes_back_is_another_process(proc: FakeProc) -> None:
    _, table = watch(proc)
    old = table.all[50]
    proc.end(50)
    table.refresh()
    proc.add(50, "other", ticks=3)
    table.refresh()
    assert table.all[50] is not old
    assert (table.all[50].comm, table.all[50].seen_ticks) == ("other", 0)


def test_a_kernel_without_pressure_figures(proc: FakeProc) -> None:
    for name in ("cpu", "memory", "io"):
        (proc.root / "pressure" / name).unlink()
    counters = Counters(str(proc.root))
    assert set(counters.missing) == {"pressure.cpu", "pressure.memory", "pressure.io"}
    assert counters.read().pressure_s == {}


def test_counters_that_run_backwards_give_no_negative_time() -> None:
    # I/O wait may decrease (proc_stat(5)); a CPU may go offline.
    first = Reading(0, 4, 10.0, 1.0, 1.0, {"cpu_some": 1.0})
    second = Reading(10**9, 2, 9.0, 0.5, 0.5, {"cpu_some": 0.5})
    found = between(first, second)
    assert (found["irq_s"], found["steal_s"], found["pressure_s"]) == (0.0, 0.0, {"cpu_some": 0.0})
    assert found["busy_s"] == 2.0


def test_the_real_proc_is_read() -> None:
    table = ProcessTable({os.getpid()})
    sampler = Sampler(Settings(), Counters(), table)
    sampler.set_server(os.getpid())
    sample = sampler.sample(look=True)
    assert os.getpid() in {process.pid for process in table.ours()}
    assert sample["server_rss_bytes"] > 10_000_000
    assert sample["memory_available_bytes"] > 0
    assert sample["cpus"] == os.cpu_count()
