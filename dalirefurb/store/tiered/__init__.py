"""Two stores as one: the fast one holds what is used next."""
