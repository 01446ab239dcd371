"""Parsing of answers while they are generated: content, reasoning and tool calls."""
