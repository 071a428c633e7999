"""Pictures of what the library does to images, made by its own machinery.

pictures.py     what the store holds, and what the network gets
operations.py   every operation of a preset, at several magnitudes
plans.py        how misses are spread over epochs and batches
canvas.py       text, frames and pictures at exact pixels
sheet.py        the first two on a canvas;  plots.py: the third by matplotlib
files.py        PNGs of all three
"""
