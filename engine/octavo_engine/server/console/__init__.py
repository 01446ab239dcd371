"""The output of `serve` for people: its start, a line about the load every 10 s, and limits on repeated lines."""
