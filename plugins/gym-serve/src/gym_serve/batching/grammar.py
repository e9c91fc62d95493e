"""Replies that a grammar allows: a schema or a pattern is compiled once, and masks the logits of each token.

llguidance (MIT) does both, outside of Python's lock. Its limits bound the work of compiling and of each mask in steps, so that a
hostile grammar costs no more than they say; it is an error of the request that brought it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from functools import lru_cache

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor
from torch.nn.functional import pad

from gym_data.tokenizer import Tokenizer
from gym_serve.contract import Grammar
from gym_serve.errors import BadRequest

#: about 20 ms to compile, 5 ms for the mask of a token, and tens of megabytes
LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "max_items_in_row": 1_000,
}
COMPACT = {"whitespace_flexible": False}  #: else a model may write space until its limit
KEPT = 8  #: vocabularies that are kept as grammars read them
DEEPEST = 64  #: levels of a schema
COMPILING = ThreadPoolExecutor(2, "compiling")  #: what outlasts its time is waited for here, by nobody else
WRITTEN: dict[str, Callable[[str], str]] = {
    "json_schema": lambda text: LLMatcher.grammar_from_json_schema(_schema(text), overrides=COMPACT),
    "json_object": lambda text: LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=COMPACT),
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
}


class Grammars:
    """Compiles grammars for the vocabulary of one model."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        """Take the tokenizer of the model as llguidance has it."""
        self._tokenizer = tokenizer

    def compile(self, grammar: Grammar, most_bytes: int, seconds: float) -> Mask:
        """Return the mask of a reply. Raises BadRequest where the grammar is too large, takes too long, or cannot be compiled."""
        size = len(grammar.text.encode())
        if size > most_bytes:
            raise BadRequest(f"a grammar of {size} bytes; {most_bytes} are taken", key=grammar.key)
        compiling: Future[Mask] = COMPILING.submit(self._compiled, grammar)
        try:
            return compiling.result(seconds)
        except LateError:
            compiling.cancel()
            raise BadRequest(f"the grammar was not compiled within {seconds:g} s", key=grammar.key) from None

    def _compiled(self, grammar: Grammar) -> Mask:
        try:
            written = WRITTEN[grammar.kind](grammar.text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"this is no {grammar.kind}: {_line(str(error))}", key=grammar.key) from error
        matcher = LLMatcher(self._tokenizer, written, log_level=0, limits=LLParserLimits(**LIMITS))
        return Mask(matcher, grammar.key)


@lru_cache(KEPT)
def grammars_of(tokenizer: Tokenizer, vocabulary: int, ends: frozenset[int]) -> Grammars:
    """Return what compiles grammars for a tokenizer, with the number of logits, and the tokens that end a reply."""
    text = (tokenizer.path / "tokenizer.json").read_text(encoding="utf-8")
    size = max(vocabulary, tokenizer.vocab_size)
    # some configs name an end that no tokenizer has
    known = [end for end in sorted(ends) if end < tokenizer.vocab_size]
    return Grammars(LLTokenizer(text, n_vocab=size, eos_token=known or None))


class Mask:
    """Where a reply is in its grammar, and which tokens may come next."""

    def __init__(self, matcher: LLMatcher, key: str) -> None:
        """Compute the first mask; `key` is the field that the grammar is from."""
        self._matcher, self._key = matcher, key
        self._allowed = self._next()

    @property
    def over(self) -> bool:
        """Whether nothing may follow but a token that ends the reply."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> None:
        """Go on behind a token. Raises BadRequest where that takes more work than it may."""
        self._matcher.consume_token(token)
        self._allowed = self._next()

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits `[vocabulary]` of the tokens that may come next; the others are never drawn."""
        more = len(logits) - len(self._allowed)  # rows of a batch have the logits of its largest vocabulary
        allowed = pad(self._allowed, (0, more))
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def _next(self) -> Tensor:
        allowed = b"" if self._matcher.is_error() else self._matcher.compute_logit_bias()
        if self._matcher.is_error():
            why = _line(self._matcher.get_error())
            raise BadRequest(f"the grammar cannot be followed: {why}", key=self._key)
        return torch.frombuffer(bytearray(allowed), dtype=torch.uint8) != 0


def _schema(text: str) -> str:
    found = json.loads(text)
    if not isinstance(found, dict | bool):
        raise ValueError("a schema is an object")
    level, depth = [found], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return text


def _line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:200]
