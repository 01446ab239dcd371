"""What is read from logits and hidden states: sampled tokens, log probabilities, pooled vectors."""
