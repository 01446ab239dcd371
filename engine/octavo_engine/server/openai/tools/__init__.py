"""The fields about tools, and grammars of their calls."""
