"""Several processes: strategies, process groups, collectives, and a watchdog that ends a run when a process is lost."""
