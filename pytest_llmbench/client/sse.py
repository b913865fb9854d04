"""Server-sent events out of (arrival, bytes) pairs, whatever way the bytes were cut."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def sse_events(chunks: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    """Yield (t_ns, data) for each event: t_ns is the arrival of the last byte of its last ``data:`` line.

    Comments, other fields and events without data are skipped and take no time from their neighbours. An event whose
    closing blank line never came is yielded all the same: what it said was said. A last line without its line end is
    not (it may have been cut in the middle). Format: WHATWG HTML, "Server-sent events".
    """
    whole = b"".join(data for _, data in chunks)
    ends = list(accumulate(len(data) for _, data in chunks))
    arrivals = [t for t, _ in chunks]
    lines: list[str] = []
    t_event = 0
    position = 0
    while (line_end := whole.find(b"\n", position)) >= 0:
        line = whole[position:line_end].removesuffix(b"\r")
        position = line_end + 1
        if not line:
            if lines:
                yield t_event, "\n".join(lines)
                lines = []
        elif line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" ").decode("utf-8", errors="replace"))
            t_event = arrivals[bisect_right(ends, line_end)]
    if lines:
        yield t_event, "\n".join(lines)
