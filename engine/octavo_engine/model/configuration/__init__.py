"""From a model's small files to its spec, pooling and sampling defaults."""
