"""What is counted while rows are read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What was read of one source, and what became of it."""

    name: str
    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)  #: what there is to say of rows that are kept
    lost: Counter[str] = field(default_factory=Counter)  #: rows of which the chat template leaves something out
    spelt: int = 0  #: rows that spell out special tokens, which are split
    read: set[str] = field(default_factory=set)  #: columns that the format reads
    unread: set[str] = field(default_factory=set)  #: columns with text that it did not read in some row
    truncated: int = 0
    parted: int = 0  #: conversations trained on in several sequences
    apart: int = 0  #: tokens of these sequences
    joined: int = 0  #: tokens of these sequences where what they begin with stands once
    unclosed: int = 0  #: sequences that do not end with a special token
