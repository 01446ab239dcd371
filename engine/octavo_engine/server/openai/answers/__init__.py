"""What an answer says: its objects, for whole answers and streams."""
