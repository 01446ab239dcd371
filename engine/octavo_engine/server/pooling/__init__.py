"""The endpoints that return pooled outputs of texts: embeddings, classes, scores of pairs, ranks of documents."""
