"""What a session's cells mean for CI: categories, exit codes, summary lines (GATE: "Outcomes"). Pure.

``outcomes.file`` holds the verdict file's models, and with them pydantic.
"""

from pytest_llmbench.outcomes.categories import (
    EXIT_CODES,
    ORDER,
    Category,
    JudgedCell,
    category_of,
    exit_code,
    is_interrupted,
    result_of,
    worst,
)
from pytest_llmbench.outcomes.summary import summary_lines

__all__ = [
    "EXIT_CODES",
    "ORDER",
    "Category",
    "JudgedCell",
    "category_of",
    "exit_code",
    "is_interrupted",
    "result_of",
    "summary_lines",
    "worst",
]
