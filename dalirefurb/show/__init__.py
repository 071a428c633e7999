"""Pictures of what the library does to images, made by its own machinery.

pictures.py     what the store holds, and what the network gets
operations.py   every operation of a preset, at several magnitudes; every stage, several times
plans.py        how misses are spread over epochs and batches
sheet.py        the first two, drawn by matplotlib at exact pixels
plots.py        the third, too
colours.py      what all have in common;  files.py: PNGs of them
"""
