"""Decoding of one sample to look at, as a loader would."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import Decoder, GraphError, decoder
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.reading.inspector import Refused, judge
from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError
from dalirefurb.source.levels import Levels

__all__ = ["Refused", "decoded"]


def decoded(encoded: NDArray[np.uint8], levels: Levels, name: str, decode: Decoder | None = None) -> NDArray[np.uint8]:
    """Return the image, uint8 of shape (height, width, 3), upright.

    Args:
        encoded: Bytes of the file, shape (length,).
        levels: Levels of what is deeper than 8 bits.
        name: Name of the sample, for a warning.
        decode: Decoder for what is DALI's; by default one that all threads of the process share.

    Raises:
        Refused: If it cannot be decoded, or has too many pixels.
    """
    pillow = PillowDecoder(BadSamplePolicy().max_pixels, levels)
    verdict = judge(encoded, pillow)
    if verdict.decoder is None:
        raise Refused(0, verdict.reason)
    failed = ""
    if verdict.decoder == "dali":
        try:
            return (decode or decoder(os.getpid()))(encoded)
        except GraphError as error:
            failed = f"{error.reason}; "
    try:
        return pillow(encoded, name)
    except PillowError as error:
        raise Refused(0, f"decoding failed ({failed}{error})") from error
