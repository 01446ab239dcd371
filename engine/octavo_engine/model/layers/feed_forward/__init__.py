"""The dense feed-forward part of a layer, and its activations."""
