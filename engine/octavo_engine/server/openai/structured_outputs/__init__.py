"""The fields that ask for a form of the answer."""
