"""What answers say: content, reasoning and calls of tools, read while they are generated."""
