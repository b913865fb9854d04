"""Sessions saved, and compared with."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_folder import Bench


def test_an_unchanged_setup_passes_and_a_slower_one_fails_on_its_cells(bench_folder: Bench) -> None:
    # 200 tok/s: a schedule that a busy machine keeps.
    card = bench_folder.card(pace={"tok_s": 200})
    bench_folder.run("--llmbench-save", "main", card=card).assert_outcomes(passed=3)
    bench_folder.run(
        "--llmbench-compare", "main", "-k", "decode", "--llmbench-compare-fail", "ttft_ms:900%", card=card
    ).assert_outcomes(passed=2, deselected=1)
    # The server gets slower by its own clock; the card stays as it is.
    saved = bench_folder.path / ".llmbench" / "saved" / "main" / "card.json"
    document = json.loads(saved.read_text())
    document["figures"]["decode[code]"]["decode_tok_s"]["median"] = 400.0
    saved.write_text(json.dumps(document))
    result = bench_folder.run(
        "--llmbench-compare", "main", "-k", "decode", "--llmbench-compare-fail", "ttft_ms:900%", card=card
    )
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    text = result.stdout.str()
    assert re.search(r"decode\[code\] regressed: [\d.]+ tok/s, was 400\.0 tok/s \(-[\d.]+%, tolerance 10\.0%\)", text)
    assert 'saved session "main" of 20' in text


def test_another_card_is_refused_with_the_differences(bench_folder: Bench) -> None:
    bench_folder.run("--llmbench-save", "main", card=bench_folder.card()).assert_outcomes(passed=3)
    other = bench_folder.card(sampling={"values": {"temperature": 0.9}, "seed": 7})
    result = bench_folder.run("--llmbench-compare", "main", card=other)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*another setup or machine*", "*card.sampling.temperature: saved 0.5, now 0.9*"])
    assert len(list((bench_folder.path / ".llmbench" / "runs").iterdir())) == 1


def test_other_weights_are_refused_and_leave_no_folder(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run("--llmbench-save", "main", "-k", "code]", card=card).assert_outcomes(passed=1, deselected=2)
    (bench_folder.path / "tiny.gguf").write_bytes(b"GGUF" + bytes(61))
    result = bench_folder.run("--llmbench-compare", "main", "-k", "code]", card=card)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*another setup or machine*", "*card.model.sha256: saved *"])
    assert len(list((bench_folder.path / ".llmbench" / "runs").iterdir())) == 1


def test_another_machine_is_refused(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run("--llmbench-save", "main", card=card)
    saved = bench_folder.path / ".llmbench" / "saved" / "main" / "card.json"
    document = json.loads(saved.read_text())
    document["key"]["machine"]["host_id"] = "elsewhere"
    saved.write_text(json.dumps(document))
    result = bench_folder.run("--llmbench-compare", "main", card=card)
    assert result.ret == 4
    result.stderr.fnmatch_lines(['*machine.host_id: saved "elsewhere", now *'])


def test_a_cell_that_the_saved_session_lacks_is_named_and_passes(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run("--llmbench-save", "main", "-k", "prose", card=card)
    result = bench_folder.run("--llmbench-compare", "main", "--llmbench-compare-fail", "9000%", card=card)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*no baseline*"])


def test_autosave_names_the_session(bench_folder: Bench) -> None:
    bench_folder.run("--llmbench-autosave", "-k", "prose", card=bench_folder.card())
    (saved,) = (bench_folder.path / ".llmbench" / "saved").glob("*/card.json")
    (run,) = (bench_folder.path / ".llmbench" / "runs").iterdir()
    assert saved.parent.name == run.name


def test_a_session_without_all_its_numbers_takes_no_saved_one_away(bench_folder: Bench) -> None:
    card = bench_folder.card()
    good = bench_folder.run("--llmbench-save", "main", card=card)
    good.assert_outcomes(passed=3)
    good.stdout.fnmatch_lines(['saved: card as "main"'])
    saved = bench_folder.path / ".llmbench" / "saved" / "main" / "card.json"
    before = saved.read_bytes()

    bad = bench_folder.run("--llmbench-save", "main", card=bench_folder.card(pace={"cache_n": 3}))
    bad.stdout.fnmatch_lines(
        ['NOT saved: card as "main": not every promised cell is measured (decode[[]code] invalid*']
    )
    assert saved.read_bytes() == before

    fewer = bench_folder.run("--llmbench-save", "main", "-k", "prose", card=bench_folder.card())
    fewer.stdout.fnmatch_lines(['NOT saved: card as "main": * also has decode[[]code], prefill[[]512]*'])
    assert saved.read_bytes() == before
    assert fewer.ret == 1  # what was asked for was not done
