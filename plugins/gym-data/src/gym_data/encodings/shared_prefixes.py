"""Sequences that begin alike, laid out so that what they share stands once: segments, each of which may continue another.

A chat template that drops the thoughts of earlier turns makes a sequence of its own for every answer. Apart, n answers take
n sequences, each as long as the conversation so far; joined, they take little more than the conversation and its thoughts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gym_data.tokenizer import Mask, Tokens

Sequenced = tuple[Tokens, Mask]
#: Tokens of each segment, and the number of the earlier one that it continues.
Segments = tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class JoinedSequences:
    """Some sequences, laid out segment after segment."""

    tokens: Tokens
    trained: Mask
    segments: Segments


@dataclass
class _Node:
    """Tokens that all sequences through here share, and what follows in some of them."""

    tokens: Tokens
    trained: Mask
    after: list[_Node] = field(default_factory=list)


def joined(sequences: Sequence[Sequenced], most: int) -> Iterator[JoinedSequences]:
    """Yield the sequences, neighbours joined as long as they take no more than `most` tokens together.

    A token is trained on where it is in any of the sequences that hold it after the same tokens: each of them learns its own.
    """
    root, size = _Node(*_nothing()), 0
    for tokens, trained in sequences:
        added = len(tokens) - _known(root, tokens)
        if root.after and size + added > most:
            yield _laid_out(root)
            root, size, added = _Node(*_nothing()), 0, len(tokens)
        _insert(root, tokens, trained)
        size += added
    if root.after:
        yield _laid_out(root)


def _nothing() -> Sequenced:
    return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_)


def _common(one: Tokens, other: Tokens) -> int:
    """Return how many tokens two sequences begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _next(node: _Node, tokens: Tokens) -> _Node | None:
    """Return what follows a node and begins as these tokens do; no two do that alike."""
    return next((child for child in node.after if len(tokens) and child.tokens[0] == tokens[0]), None)


def _known(node: _Node, tokens: Tokens) -> int:
    """Return how many tokens of a sequence are there already."""
    child = _next(node, tokens)
    if child is None:
        return 0
    common = _common(child.tokens, tokens)
    return common + (_known(child, tokens[common:]) if common == len(child.tokens) else 0)


def _insert(node: _Node, tokens: Tokens, trained: Mask) -> None:
    """Add a sequence below a node."""
    while len(tokens):
        child = _next(node, tokens)
        if child is None:
            node.after.append(_Node(tokens, trained))
            return
        common = _common(child.tokens, tokens)
        if common < len(child.tokens):
            child.after = [_Node(child.tokens[common:], child.trained[common:], child.after)]
        child.tokens, child.trained = child.tokens[:common], child.trained[:common] | trained[:common]
        node, tokens, trained = child, tokens[common:], trained[common:]


def _laid_out(root: _Node) -> JoinedSequences:
    """Lay segments out, each after the one that it continues."""
    order: list[_Node] = []
    segments: list[tuple[int, int | None]] = []
    waiting: list[tuple[_Node, int | None]] = [(child, None) for child in reversed(root.after)]
    while waiting:
        node, before = waiting.pop()
        waiting += [(child, len(order)) for child in reversed(node.after)]
        order.append(node)
        segments.append((len(node.tokens), before))
    tokens = np.concatenate([node.tokens for node in order])
    return JoinedSequences(tokens, np.concatenate([node.trained for node in order]), tuple(segments))
