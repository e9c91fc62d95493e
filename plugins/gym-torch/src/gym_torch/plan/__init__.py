"""What a run needs before it is started: memory, disk and time, computed without weights."""
