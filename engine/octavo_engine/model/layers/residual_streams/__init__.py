"""Residual streams of more than one vector for each token, and what stands beside the stream."""
