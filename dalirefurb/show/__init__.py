"""Pictures of what the library does to images, made by its own machinery. All have the colours below in common.

pictures.py     what the store holds, and what the network gets
operations.py   every operation of a preset, at several magnitudes; every stage, several times
sheet.py        both, drawn by matplotlib at exact pixels
overlays.py     boxes, outlines, keypoints and masks on pictures
plots.py        how misses are spread over epochs and batches
files.py        PNGs of them
"""

BACKGROUND = "#fbfbf8"
INK = "#1f2328"
GREY = "#6a7178"
LINE = "#c4c9ce"
COMPARED = "#9aa1a8"

CACHED = "#0072b2"
"""Blue and vermilion can be told apart by the colour-blind, and on gray prints."""

FRESH = "#c24f00"

MOST_USES = 12
"""Of a version on a sheet; more would not fit."""
