"""The command line over what real sessions left."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pytest_llmbench.history import keys
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from bench_folder import Bench


def llmbench(bench_folder: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pytest_llmbench.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args],
        cwd=bench_folder.path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_real_session_becomes_a_baseline(bench_folder: Bench) -> None:
    bench_folder.run(card=bench_folder.card())
    report = bench_folder.report()
    done = llmbench(bench_folder, "history", "rebuild")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 session and 0 acceptances" in done.stdout
    identity = report["contract"]["identity"]
    with Store.open(bench_folder.path / ".llmbench") as store:
        found = store.baselines_of(identity)
        measured = {
            (cell["id"], figure["name"]): figure["median"]
            for cell in report["cells"]
            for figure in cell["figures"]
            if figure["direction"] != "none" and figure["median"]
        }
        assert {key: baseline.values for key, baseline in found.items()} == {k: (v,) for k, v in measured.items()}
        assert ("decode[code]", "decode_tok_s") in found
        (setup,) = store.setups()
        assert setup.identity == identity
        (one,) = store.outcomes(keys.cell_key(identity, "decode[code]"), keys.machine_key(identity), "decode_tok_s")
        assert one.usable
        assert store.changed_since(identity, "decode[code]", "decode_tok_s", report["environment"]) == ()
        (row,) = store.sessions()
        assert (bench_folder.path / ".llmbench" / row.folder / "report.json").exists()
    listed = llmbench(bench_folder, "history")
    assert report["session"] in listed.stdout
    assert "complete" in listed.stdout
    shown = llmbench(bench_folder, "baseline")
    assert "collecting, 9 missing" in shown.stdout


def test_a_probe_and_a_failed_start_make_no_baseline(bench_folder: Bench) -> None:
    bench_folder.run("--llmbench-probe", card=bench_folder.card())
    bench_folder.run(card=bench_folder.card(server={"args": ["-m", "tiny.gguf", "--no-such-flag"]}))
    done = llmbench(bench_folder, "history", "rebuild")
    assert done.returncode == 0, done.stderr
    assert "1 session and" in done.stdout
    assert "not recorded: 0 runs without a report; probes and direct comparisons: 1" in done.stdout
    assert "3 failed" in llmbench(bench_folder, "history").stdout
    assert "no baseline in" in llmbench(bench_folder, "baseline").stdout


def test_a_supplement_counts_only_what_it_measured_first(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run(card=card, paths=("test_decode.py",))
    (first,) = (path.name for path in (bench_folder.path / ".llmbench" / "runs").iterdir())
    bench_folder.run("--llmbench-supplement", first, "--llmbench-supplement-reason", "prefill is missing", card=card)
    done = llmbench(bench_folder, "history", "rebuild")
    assert "2 sessions" in done.stdout, done.stderr
    with Store.open(bench_folder.path / ".llmbench") as store:
        (setup,) = store.setups()
        found = store.baselines_of(setup.identity)
        second = store.sessions()[0].session
        assert second != first
        assert found["decode[code]", "decode_tok_s"].sessions == (first,)
        assert found["prefill[512]", "prefill_tok_s"].sessions == (second,)
        cell, machine = keys.cell_key(setup.identity, "decode[code]"), keys.machine_key(setup.identity)
        assert [one.session for one in store.outcomes(cell, machine, "decode_tok_s")] == [first]
    shown = llmbench(bench_folder, "history", "show", second)
    assert f"supplement of {first}" in shown.stdout
    assert "decode[code]: measured, of an earlier session" in shown.stdout
