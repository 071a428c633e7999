"""A store in the memory of a GPU."""
