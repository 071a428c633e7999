"""Several stores as one: the faster ones hold what is used sooner."""
