"""Retrieval-augmented generation: embeddings find the passage nearest to a question, and the model answers from it."""

import math

from endpoint import connect

PASSAGES = [
    "The library opens at nine in the morning and closes at eight in the evening.",
    "A reader may borrow up to five books for four weeks.",
    "The reading room is on the second floor, beside the maps.",
]
QUESTION = "How many books may a reader borrow?"


def similarity(left: list[float], right: list[float]) -> float:
    """The cosine of the angle between two vectors."""
    product = sum(a * b for a, b in zip(left, right, strict=True))
    return product / (math.hypot(*left) * math.hypot(*right))


client, model = connect()
vectors = [row.embedding for row in client.embeddings.create(model=model, input=[*PASSAGES, QUESTION]).data]
*known, asked = vectors
scores = [similarity(vector, asked) for vector in known]
best = PASSAGES[scores.index(max(scores))]
print(f"nearest passage: {best}")
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": f"{best}\n\nAnswer from this text: {QUESTION}"}],
    temperature=0,
    max_tokens=60,
)
print(answer.choices[0].message.content)
