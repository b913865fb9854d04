"""Which earlier run is gone on with, and what is taken over of a cell that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from cells import good
from test_plan import card

from pytest_llmbench import plan, resume
from pytest_llmbench.going_on import _conclude
from pytest_llmbench.preparation import Preparation
from pytest_llmbench.resume import Continue, NothingToGoOnError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ({"A": ("", True)}, "A"),
        ({"A": ("", False)}, None),
        ({"A": ("", True), "B": ("A", True)}, "B"),
        ({"A": ("", True), "B": ("A", True), "C": ("B", True)}, "C"),
        # A was cut short and went on in B, which was cut short and came to its end in C: nothing is left.
        ({"A": ("", True), "B": ("A", True), "C": ("B", False)}, None),
        ({"A": ("", True), "B": ("", True), "C": ("B", False)}, "A"),
    ],
)
def test_the_last_run_that_nobody_went_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, tuple[str, bool]], found: str | None
) -> None:
    """runs: by session, the one that it went on with, and whether something is left in it."""
    for name in runs:
        folder = tmp_path / "runs" / name / "card"
        folder.mkdir(parents=True)
        (folder / "contract.json").touch()

    def read(folder: Path) -> Any:
        name = folder.parent.name
        earlier, left = runs[name]
        contract = {"continues": {"session": earlier} if earlier else None}
        return SimpleNamespace(session=name, contract=contract, unfinished=left, has_report=True)

    monkeypatch.setattr(resume, "read", read)
    wish = Continue("resume", resume.LAST)
    if found is None:
        with pytest.raises(NothingToGoOnError):
            resume.find(tmp_path, "card", wish)
    else:
        assert resume.find(tmp_path, "card", wish).parent.name == found


def test_a_cell_that_failed_for_want_of_a_server_keeps_its_reason(tmp_path: Path) -> None:
    spec = next(one for one in plan.cells(card()) if one.id == "decode[code]")
    reasons = ("server start 2 failed: exit code 1",)
    found = _conclude(spec, [good(1, 60.0)], "failed", reasons, tmp_path, "card")
    assert (found.status, found.reasons) == ("failed", reasons)
    assert len(found.attempts) == 1


def test_the_draft_models_weights_are_part_of_what_is_compared(tmp_path: Path) -> None:
    made = card(model__draft_model={"name": "D", "file": {"path": "~/d.gguf"}})

    def key(draft: str) -> Any:
        one = Preparation(
            made, cells=(), left_out=(), folder=tmp_path, wishes=cast("Any", None), phase=lambda _text: None
        )
        facts = {"sha256": "1" * 64, "draft_model": {"sha256": draft}}
        return one._identity(cast("Any", SimpleNamespace(model_facts=facts)))

    assert key("a" * 64)["draft_model"] == {"sha256": "a" * 64}
    assert key("a" * 64) != key("b" * 64)
