"""Colours of pictures and plots."""

BACKGROUND = "#fbfbf8"
INK = "#1f2328"
GREY = "#6a7178"
LINE = "#c4c9ce"
COMPARED = "#9aa1a8"

CACHED = "#0072b2"
"""Blue and vermilion can be told apart by the colour-blind, and on gray prints."""

FRESH = "#c24f00"
