"""Several stores as one: what the fast ones have no room for the slower ones hold."""
