"""What is measured: Octavo and its peers side by side."""
