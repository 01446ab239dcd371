"""WHAT to compute: from config.json and weights to a decoder that turns tokens into logits."""
