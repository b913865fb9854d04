"""Is a number a regression? Pure functions over values: no clock, no file, no network (docs/gate.md)."""

from __future__ import annotations

from pytest_llmbench.gate.decision import Decision, Kind
from pytest_llmbench.gate.machine import Machine, machine_state
from pytest_llmbench.gate.messages import explain, shown
from pytest_llmbench.gate.resolve import chance_to_find, resolves
from pytest_llmbench.gate.rule import RULE, WITH_CONTROL, Rule, decide
from pytest_llmbench.gate.spread import sigma0

__all__ = [
    "RULE",
    "WITH_CONTROL",
    "Decision",
    "Kind",
    "Machine",
    "Rule",
    "chance_to_find",
    "decide",
    "explain",
    "machine_state",
    "resolves",
    "shown",
    "sigma0",
]
