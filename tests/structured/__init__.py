"""Tests of the room structured/."""
