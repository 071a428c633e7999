"""The machine and the process: threads, cores, quotas of control groups, launchers, who shares the machine."""
