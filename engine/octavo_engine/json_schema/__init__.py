"""JSON schemas: the schemas within one, and their narrowing to what llguidance follows exactly."""
