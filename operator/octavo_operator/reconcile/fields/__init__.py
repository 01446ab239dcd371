"""The fields of a child by their managers: which are the operator's, and which others have added."""
