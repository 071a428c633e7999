"""What is deterministic, kept for ever, once for all processes of a machine.

kept.py      the source that remembers: what is kept is served, what is not is read or decoded below, and kept
prefix.py    first stages of recipes, of which what they leave is kept
planes.py    what is kept of JPEGs in place of RGB
record.py    what is written down of each sample
folder.py    the folder that any number of processes read and add to
upkeep.py    what is in it, whether it is whole, and an end of it
"""
