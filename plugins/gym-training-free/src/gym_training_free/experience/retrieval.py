"""Which experiences a question is shown, where the library is larger than a prompt should be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.experience.similarity import words

K1, B = 1.2, 0.75  #: of BM25 (Robertson and Zaragoza 2009)


def by_words(library: ExperienceLibrary, question: str, count: int) -> list[str]:
    """Return the ids of the experiences whose words fit a question best (BM25); ties go to what gained most."""
    documents = {one.id: Counter(words(one.text)) for one in library}
    mean = sum(map(Counter.total, documents.values())) / max(1, len(documents))
    asked = set(words(question))
    having = {word: sum(word in document for document in documents.values()) for word in asked}

    def score(document: Counter[str]) -> float:
        length = K1 * (1 - B + B * document.total() / mean)
        rare = {word: math.log(1 + (len(documents) - n + 0.5) / (n + 0.5)) for word, n in having.items()}
        return math.fsum(rare[word] * document[word] * (K1 + 1) / (document[word] + length) for word in asked)

    return _best({identity: score(document) for identity, document in documents.items()}, library, count)


def by_vectors(
    library: ExperienceLibrary, vectors: Sequence[Sequence[float]], question: Sequence[float], count: int
) -> list[str]:
    """Return the ids of the experiences whose vectors, in the order of the library, are nearest to a question's (cosine)."""
    near = {one.id: _cosine(vector, question) for one, vector in zip(library, vectors, strict=True)}
    return _best(near, library, count)


def _best(scores: dict[str, float], library: ExperienceLibrary, count: int) -> list[str]:
    order = {one.id: (-scores[one.id], -(one.uplift or 0.0), place) for place, one in enumerate(library)}
    return sorted(order, key=order.__getitem__)[:count]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    size = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / size if size else 0.0
