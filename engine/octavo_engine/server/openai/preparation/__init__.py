"""What a text worker does with a body: from its bytes to token ids and checked parameters."""
