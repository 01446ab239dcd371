"""What each process sets up for itself: logs, signals, sockets, imports, memory and threads."""
