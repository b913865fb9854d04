"""One file a part: what a part's requests say, as figures. A new part is one file and one line in ``PARTS``."""

from pytest_llmbench.measure import concurrency, context, decode, fit, long_answer, prefill
from pytest_llmbench.measure.part import Part

PARTS: dict[str, Part] = {
    "decode": decode.PART,
    "prefill": prefill.PART,
    "concurrency": concurrency.PART,
    "context": context.PART,
    "long_answer": long_answer.PART,
    "fit": fit.PART,
}

__all__ = ["PARTS", "Part"]
