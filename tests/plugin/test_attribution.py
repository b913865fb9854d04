"""A whole session whose figure regressed says what is known to differ from the baseline's sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from seeded import seed

if TYPE_CHECKING:
    from bench_folder import Bench


def test_a_regression_is_broken_down_in_the_message_and_the_report(bench_folder: Bench) -> None:
    card = bench_folder.card(
        pace={"tok_s": 200, "ttft_ms": 60, "timings_extra": {"draft_n": 24, "draft_n_accepted": 4}}
    )
    bench_folder.run(card=card, paths=("test_decode.py",))

    def faster_with_drafts(made: dict[str, Any]) -> None:
        for cell in made["cells"]:
            for figure in cell["figures"]:
                if figure["name"] == "decode_tok_s":
                    figure["median"] *= 3
            for attempt in cell["attempts"]:
                attempt["details"] |= {"draft_n_accepted": 20}
        made["environment"]["engine"]["version"] = "older"

    seed(bench_folder, bench_folder.report(), alter=faster_with_drafts)
    done = bench_folder.run("-k", "code]", card=card, paths=("test_decode.py",))
    assert done.ret == 10
    done.stdout.fnmatch_lines(
        [
            "decode[[]code[]] regressed: *",
            "  drafts 2.67 -> 1.14 tokens a pass, acceptance 83% -> 17% explains about -57.1% of -*",
            "  rest, not explained: *",
            "  changed since the baseline: engine older -> *",
        ]
    )
    reports = sorted(
        (bench_folder.path / ".llmbench" / "runs").glob("*/card/report.json"), key=lambda p: p.stat().st_mtime
    )
    last = json.loads(reports[-1].read_text(encoding="utf-8"))
    (figure,) = [f for c in last["cells"] for f in c["figures"] if f["name"] == "decode_tok_s" and f["verdict"]]
    assert any(line.startswith("changed since the baseline: engine older -> ") for line in figure["explanation"])
