"""Tests of output_parsing/."""
