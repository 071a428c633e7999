"""One loader's batches for several trainings of a machine, each of which gets each batch once.

server.py     the process that makes batches: who is attached, which batch is made next, whom it waits for
attached.py   a training's end: what it iterates
wire.py       the socket between them, and memory that they share
"""
