"""Table of outcomes: what was hoped, what was seen, and whether that is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from first_light.findings import DONE, Outcome, last_words

_HEADING = ("step", "", "hoped", "seen", "")
_SHOWN = 4
_WIDTHS = (26, 44, 40, 90, 7)

Line = tuple[str, str, str, str, str]


def table(outcomes: Iterable[Outcome], *, whole: bool = False) -> str:
    """Write a line for each finding; where many of a step are right only their number, unless `whole`."""
    lines = [line for outcome in outcomes for line in _lines(outcome, whole=whole)]
    if not whole:
        lines = [_shortened(line) for line in lines]
    return aligned([_HEADING, *lines])


def aligned(lines: Sequence[Line]) -> str:
    """Align columns to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADING))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _lines(outcome: Outcome, *, whole: bool) -> list[Line]:
    found = outcome.findings
    right = [each for each in found if each.right]
    shown = found if whole or len(right) <= _SHOWN else [each for each in found if not each.right]
    lines: list[Line] = [(outcome.step, each.what, each.hoped, each.seen, each.verdict) for each in shown]
    if len(shown) < len(found):
        examples = right[0].seen if len({each.seen for each in right}) == 1 else f"first: {right[0].seen}"
        lines.append((outcome.step, f"{len(right)} findings", "as hoped", examples, "right"))
    if not outcome.was_run:
        lines.append((outcome.step, "", "", outcome.ended, "not run"))
    elif outcome.ended != DONE:
        seen = f"{outcome.ended}; {last_words(outcome.reason)}".rstrip("; ")
        lines.append((outcome.step, "", "it ends well", seen, "wrong"))
    elif not found:
        lines.append((outcome.step, "", "something is found", "nothing", "wrong"))
    return lines


def _shortened(line: Line) -> Line:
    cells = (
        cell if len(cell) <= width else cell[: width - 3] + "..." for cell, width in zip(line, _WIDTHS, strict=True)
    )
    step, what, hoped, seen, verdict = cells
    return step, what, hoped, seen, verdict
