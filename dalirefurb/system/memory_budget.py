"""Budgets in bytes: "16GB", "500 MiB", "60%" of what there is, or the number itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from dalirefurb.checks import plain
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.available import available_bytes

Budget = int | str
"""Bytes, or words for them."""

_UNITS = {"B": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for ending, base in (("B", 1000), ("iB", 1024))
}
_FORM = re.compile(rf"(\d+(?:\.\d+)?)\s*(%|{'|'.join(_UNITS)})")


def budget_bytes(budget: Budget, *, available: Callable[[], int | None] = available_bytes) -> int:
    """Return a budget in bytes, rounded down.

    Args:
        budget: Bytes as an int, or a number and a unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of
            1024), or % of what is available.
        available: Function that tells what is available, in bytes; it is asked for a share only. By default the memory
            a process can still take.

    Raises:
        ConfigurationError: If it is no budget, or a share of something unknown.

    Example:
        >>> budget_bytes("1.5GB"), budget_bytes("2 KiB"), budget_bytes("60%", available=lambda: 1000)
        (1500000000, 2048, 600)
    """
    budget = plain(budget)
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    form = _FORM.fullmatch(budget.strip()) if isinstance(budget, str) else None
    number = Decimal(form[1]) if form else Decimal(0)
    if form is None or (form[2] == "%" and number > 100):
        raise ConfigurationError(
            "a budget must be bytes as an int of at least 0, or text such as '16GB', '500MiB' or '60%', got "
            f"{budget!r}: write a number and one of %, B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    if form[2] != "%":
        return int(number * _UNITS[form[2]])
    whole = available()
    if whole is None:
        raise ConfigurationError(
            f"a budget of {budget!r} must be a share of a known amount, but how much is available cannot be found out "
            "here: pass bytes, such as '16GB'"
        )
    return int(number * whole / 100)


def checked_budget(budget: Budget | None) -> Budget | None:
    """Return a budget, or None for none, to be turned into bytes when they are known; refuse what is no budget."""
    if budget is not None:
        budget_bytes(budget, available=lambda: 0)
    return budget


def amount(nbytes: float) -> str:
    """Write bytes in a unit that leaves them readable.

    >>> amount(15_432_196_608), amount(3_072)
    ('15.43 GB', '3.07 KB')
    """
    unit = next(power for power in (4, 3, 2, 1, 0) if nbytes >= 1000**power or power == 0)
    name = ("B", "KB", "MB", "GB", "TB")[unit]
    return f"{nbytes / 1000**unit:.{2 if unit else 0}f} {name}"
