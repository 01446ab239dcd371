"""Engine pods: their phase, problems, place on nodes, and what they report. Pure."""
