"""Checks that there is memory for what is asked, before anything is made."""

from __future__ import annotations

from dalirefurb.errors import ConfigurationError

PIXEL_BYTES = 12
"""Of a final image: three channels in float32."""


def check_memory(nbytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into the memory at hand.

    Args:
        nbytes: The least memory that is needed, in bytes.
        what: What needs the memory, for the message.
        remedy: What to do if the memory is too small, for the message.

    Raises:
        ConfigurationError: If it does not fit.
    """
    from dalirefurb.store.available import available_bytes
    from dalirefurb.store.memory_budget import amount

    available = available_bytes()
    if available is not None and nbytes > available:
        raise ConfigurationError(
            f"memory must hold {what}, which is at least {amount(nbytes)}, but {amount(available)} are available: "
            f"{remedy}"
        )
