"""A paced server: a stand-in for llama-server whose timing is known exactly, for tests and for the self-check.

``running(Pace(tok_s=50.0))`` starts one; ``python -m pytest_llmbench.paced -m FILE`` is the same by hand, and takes
llama-server's arguments, so that a setup card can name it as the binary (``llmbench-paced``).
"""

from __future__ import annotations

from pytest_llmbench.paced.pace import Pace
from pytest_llmbench.paced.process import PacedProcess, running
from pytest_llmbench.paced.truth import TruthChunk, TruthRecord, read_truth

__all__ = ["Pace", "PacedProcess", "TruthChunk", "TruthRecord", "read_truth", "running"]
