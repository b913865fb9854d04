"""Where real tests must not be skipped: LLMBENCH_TESTS_REQUIRE_REAL=1 (CI sets it) makes every skip here a failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

REQUIRED = os.environ.get("LLMBENCH_TESTS_REQUIRE_REAL", "") not in ("", "0")


def _refuse_skip(report: Any) -> Any:
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"LLMBENCH_TESTS_REQUIRE_REAL is set, and this was about to be skipped. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return _refuse_skip((yield))
