"""The table at the end: Markdown that a person can paste into a post. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.errors import counted, printable
from pytest_llmbench.verdict import repeats, shown

if TYPE_CHECKING:
    from pytest_llmbench.report.form import CellEntry, Document

_COLUMNS = {
    "total_tok_s": "total tok/s",
    "request_tok_s": "per request tok/s",
    "decode_tok_s": "decode tok/s",
    "prefill_tok_s": "prefill tok/s",
    "ttft_ms": "first token ms",
    "wall_s": "wall s",
    "load_s": "load s",
    "peak_memory_mib": "peak MiB",
}
UNSTEADY_CV = 0.2
"""Above it a median says little; the figure stands, and the table says so."""
# Verdicts that a reader must see; "ok" is silence, and what has no baseline yet is counted below the table.
_SAID = ("below floor", "below target", "regressed", "improved", "inconclusive", "noisy", "machine changed")


def render(document: Document) -> str:
    """Setup, headline and one row a cell; a cell without a number says why below the table."""
    lines = [f"**{document.card['title'].strip()}**", "", *_kind(document)]
    lines += [f"{line}  " for line in _setup(document) if line]
    lines = [_one_line(line) for line in (*lines, "", *_headline(document))] + _rows(document.cells)
    notes = _without_a_number(document.cells)
    notes += [
        f"- {cell.id} (searched): {'answered' if cell.status == 'measured' else 'failed'}"
        for cell in document.searched or ()
    ]
    notes += [f"- {cell.id}: {note}" for cell in document.cells for note in (*cell.notes, *_queues(cell))]
    notes += _slowed_gpus(document.cells)
    notes += [
        f"- {cell.id} {line}"
        for cell in document.cells
        for line in repeats([(a["run"], a["number"], a["reason"]) for a in cell.attempts if not a["again"]])
    ]
    notes += [
        f"- {cell.id}: its runs differ by {figure.cv:.0%} (CV): measure again on a quiet machine"
        for cell in document.cells
        for figure in cell.figures
        if figure.name == cell.headline and figure.cv is not None and figure.cv > UNSTEADY_CV
    ]
    notes += [
        f"- {cell.id} is shown from {document.session}; {cell.replaced['session']} had "
        + ", ".join(f"{name} {shown(value, '').strip()}" for name, value in cell.replaced["medians"].items() if value)
        for cell in document.cells
        if cell.replaced
    ]
    if notes:
        lines += ["", *map(_one_line, notes)]
    examined = sum(cell.requests_examined_for_cache for cell in document.cells)
    cached = sum(cell.requests_with_cached_tokens for cell in document.cells)
    caches = f"Cached prompt tokens: in {cached} of {counted(examined, 'request')} examined. " if examined else ""
    lines += ["", f"{caches}{document.tool}, {document.started[:10]}."]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    """Text outside the table as one line that Markdown does not take for a row of one."""
    return printable(text).replace("|", "\\|")


def _kind(document: Document) -> list[str]:
    """What kind of run this is, where it is not a whole session of its own with the card's plan."""
    lines = ["**Probe: a trial run, not a measurement.**"] if document.probe else []
    if document.canary:
        lines.append(f"**Canary: the server was slowed on purpose, {document.canary['words']}. Not a measurement.**")
    if document.against:
        one = document.against
        lines.append(
            f"Direct comparison, the {one['role']} side, with {one['card']}: {counted(one.get('pairs', 0), 'pair')}, "
            f"{one.get('ended') or 'cut short'}. Differs (old -> new): {'; '.join(one['differs']) or 'nothing that is known'}."
        )
    if document.plan_changes:
        said = [
            f if v is True else f"{f} {','.join(map(str, v)) if isinstance(v, list | tuple) else v}"
            for f, v in document.plan_changes.items()
        ]
        lines.append(f"Plan changed: {'; '.join(said)}.")
    if document.continues:
        why = f" ({document.continues['reason']})" if document.continues["reason"] else ""
        own = [cell.id for cell in document.cells if document.session in cell.sessions]
        lines.append(
            f"{document.continues['kind'].capitalize()} of {document.continues['session']}{why}; "
            f"measured in {document.session}: {', '.join(own) or 'nothing'}."
        )
    return [part for line in lines for part in (line, "")]


def _setup(document: Document) -> list[str]:
    machine = document.environment.get("machine", {})
    stated = [f"{gpu} (as stated)" for gpu in document.environment.get("gpus_not_verified", ())]
    gpus = ", ".join([*(gpu["name"] for gpu in machine.get("gpus", ())), *stated]) or "no NVIDIA GPU"
    where = [
        gpus,
        f"{machine.get('cpu') or 'CPU unknown'} ({machine.get('cores_logical')} logical cores)",
        f"{machine['memory_mib'] / 1024:.0f} GiB RAM" if "memory_mib" in machine else "",
    ]
    engine = document.environment.get("engine", {})
    return [
        " · ".join(w for w in where if w) if machine else "",
        " · ".join(str(w) for w in (engine.get("kind"), engine.get("version")) if w),
    ]


def _queues(cell: CellEntry) -> list[str]:
    """Started and queued requests of a level above the server's slots, apart."""
    found = {f.name: f.median for f in cell.figures if f.median is not None and f.label == "queues"}
    if "queued_requests" not in found:
        return ["queues (the server does not show which requests waited)"] if found else []
    words = [
        f"{kind} {shown(found[f'{kind}_tok_s'], 'tok/s')} per request, first token {shown(found[f'{kind}_ttft_ms'], 'ms')}"
        for kind in ("started", "queued")
        if f"{kind}_tok_s" in found and f"{kind}_ttft_ms" in found
    ]
    return [f"queues, {counted(round(found['queued_requests']), 'request')} waited for a slot; {'; '.join(words)}"]


def _slowed_gpus(cells: tuple[CellEntry, ...]) -> list[str]:
    """A line for each GPU and kind of slowdown: in up to how many of a run's samples, and in which cells."""
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        for gpu in (g for a in cell.attempts for g in (a["details"].get("watch") or {}).get("gpus", ())):
            name, limit = "-".join(gpu["uuid"].split("-")[:2]), gpu["power_limit_w"]
            said = dict(gpu["throttle_reasons"])
            said[f"at its power limit of {limit:.0f} W" if limit else "at its power limit"] = (
                gpu["power_capped_share"] or 0
            )
            for reason, share in said.items():
                if share:
                    of = found.setdefault(f"{name}: {reason}", {})
                    of[cell.id] = max(share, of.get(cell.id, 0))
    return [
        f"- {what} in up to {max(of.values()):.0%} of a run's samples ({len(of)} of {len(cells)} cells)"
        if len(of) > 3
        else f"- {what} in up to {max(of.values()):.0%} of a run's samples ({', '.join(of)})"
        for what, of in found.items()
    ]


def _headline(document: Document) -> list[str]:
    head = document.headline
    fits = [f"Largest context that answered: **{head.fit_largest}** tokens.", ""] if head.fit_largest else []
    if head.decode_tok_s is None:
        return fits
    medians = ", ".join(
        f"{cell.id.partition('[')[2].rstrip(']')} {figure.median:.1f}"
        for cell in document.cells
        if cell.part == "decode"
        for figure in cell.figures
        if figure.name == "decode_tok_s" and figure.median is not None
    )
    spread = f", spread {head.decode_spread_cv:.1%}" if head.decode_spread_cv is not None else ""
    words = (
        f"; {head.words_s:.1f} words/s, 500 words in {head.seconds_for_500_words:.1f} s"
        if head.words_s and head.seconds_for_500_words
        else ""
    )
    return [f"Decode **{head.decode_tok_s:.1f} tok/s** ({medians}{spread}){words}.", "", *fits]


def _rows(cells: tuple[CellEntry, ...]) -> list[str]:
    used = [name for name in _COLUMNS if any(f.name == name for cell in cells for f in cell.figures)]
    header = ["cell", *(_COLUMNS[name] for name in used), "runs", "spread", "result"]
    rows = [header, ["---", *("---:" for _ in used), "---:", "---:", "---"]]
    for cell in cells:
        figures = {f.name: f for f in cell.figures}
        own = figures.get(cell.headline or "")
        values = [_value(figures[name].median) if name in figures else "" for name in used]
        spread = f"{own.cv:.1%}" if own and own.cv is not None else ""
        rows.append([cell.id, *values, str(len(own.values)) if own else "0", spread, _result(cell)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    rows[1] = [("-" * (w - 1) + ":") if c.endswith(":") else "-" * w for c, w in zip(rows[1], widths, strict=True)]
    to_the_right = [c.endswith(":") for c in rows[1]]
    return [
        "| " + " | ".join(_put(*each) for each in zip(row, widths, to_the_right, strict=True)) + " |" for row in rows
    ]


def _put(text: str, width: int, to_the_right: bool) -> str:  # noqa: FBT001
    return text.rjust(width) if to_the_right else text.ljust(width)


def _value(median: float | None) -> str:
    return "-" if median is None else shown(median, "").strip()


def _result(cell: CellEntry) -> str:
    said = [f"{f.name} {f.verdict}" for f in cell.figures if f.verdict in _SAID]
    return ", ".join(said if cell.status == "measured" and said else [cell.status, *said])


def _without_a_number(cells: tuple[CellEntry, ...]) -> list[str]:
    """A line for each reason, with the cells that have it: what keeps a server from starting is every cell's reason."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.status != "measured":
            reasons.setdefault(f"{cell.status}: {_first_line(cell.reasons)}", []).append(cell.id)
    return [f"- {', '.join(ids)} {reason}" for reason, ids in reasons.items()]


def _first_line(reasons: tuple[str, ...]) -> str:
    return reasons[0].splitlines()[0] if reasons else "no reason recorded"
