"""The memory of a device, and the plan of what a model takes of it."""
