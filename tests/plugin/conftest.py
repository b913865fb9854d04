"""The folder that whole sessions run in."""

from __future__ import annotations

from bench_folder import Bench, bench_folder, first_report, make_card

__all__ = ["Bench", "bench_folder", "first_report", "make_card"]
