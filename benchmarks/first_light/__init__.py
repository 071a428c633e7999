"""First light: whether dalirefurb is right, and how fast it is, on a GPU that it has not seen before."""
