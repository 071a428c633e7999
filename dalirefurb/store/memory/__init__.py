"""A store in this process's memory."""
