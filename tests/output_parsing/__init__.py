"""Tests of the room output_parsing/."""
