"""What `dalirefurb train` and `dalirefurb demo` do: a small network, its training loop, photographs, comparisons.

It is no part of the library, which imports nothing of it: the command line loads it when one of the two is given.
"""
