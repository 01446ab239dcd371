"""The parts of a decoder: its layers, the modules and operations of a layer, embeddings and heads."""
