"""Endpoints that answer with what stands for texts: embeddings, scores of pairs, ranks of documents."""
