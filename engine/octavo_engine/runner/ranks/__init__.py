"""The other ranks of a model on several devices: their processes, and the messages to them."""
