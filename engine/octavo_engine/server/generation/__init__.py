"""Running a prepared request on the engine: its sequences, and the text of their tokens."""
