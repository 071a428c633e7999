"""One loader's batches for several trainings of a machine, each of which gets each batch once.

server.py     the process that makes batches
window.py     which batches are there, in which memory, and for whom
attached.py   a training's end: what it iterates
wire.py       the socket between them, and memory that they share
"""
