"""The base classes of request bodies, and the types and checks of their fields."""
