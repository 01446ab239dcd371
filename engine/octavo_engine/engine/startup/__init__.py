"""The start of an engine: from its settings to a planned and loaded model, in the first rank and in all others."""
