"""Endpoints of pooled outputs: embeddings, classes, scores of pairs, ranks of documents."""
