"""Endpoints that answer with what stands for texts: embeddings, classes, scores of pairs, ranks of documents."""
