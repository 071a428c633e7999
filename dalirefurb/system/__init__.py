"""The machine and the process: threads, cores, quotas of control groups, what a launcher sets."""
