"""A store in a file, which processes share."""
