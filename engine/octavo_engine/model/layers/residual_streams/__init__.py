"""Residual streams of more than one vector for each token, and further addends of the stream."""
