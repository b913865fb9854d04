"""Marks of slow and flaky cells: proposed from the history, in effect only from a reviewed file (GATE: "Marks")."""
