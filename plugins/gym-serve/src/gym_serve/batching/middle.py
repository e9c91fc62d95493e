"""Text in the middle of a text: how a vocabulary with tokens for that has it asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gym_serve.batching.batch_model import Words
from gym_serve.contract import Request
from gym_serve.errors import BadRequest

Layout = Mapping[str, str]  #: tokens in their order, each with the text that stands behind it

LAYOUTS: Sequence[Layout] = (
    {"<|fim_prefix|>": "prompt", "<|fim_suffix|>": "suffix", "<|fim_middle|>": ""},  # Qwen, CodeGemma, Granite 4
    {"<fim_prefix>": "prompt", "<fim_suffix>": "suffix", "<fim_middle>": ""},  # StarCoder, Granite, Stable Code
    {"<fim-prefix>": "prompt", "<fim-suffix>": "suffix", "<fim-middle>": ""},  # SantaCoder
    {"<\uff5cfim▁begin\uff5c>": "prompt", "<\uff5cfim▁hole\uff5c>": "suffix", "<\uff5cfim▁end\uff5c>": ""},  # DeepSeek
    {"▁<PRE>": "prompt", "▁<SUF>": "suffix", "▁<MID>": ""},  # CodeLlama
    {"<[fim-suffix]>": "suffix", "<[fim-prefix]>": "prompt", "<[fim-middle]>": ""},  # Seed-Coder
    {"[SUFFIX]": "suffix", "[PREFIX]": "prompt"},  # Codestral
)
"""As each family was trained, in the order in which a vocabulary is looked through."""
ENDS = (
    "<|endoftext|>", "<|end_of_text|>", "<|EOT|>", "▁<EOT>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|repo_name|>",
    "<repo_name>", "<reponame>", "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>",
)  # fmt: skip
"""Tokens behind which the middle is over: the text ends there, or another file begins."""
BEFORE = "☺"  #: a word that no other joins, where vocabularies write a space before the first


def middle_tokens(request: Request, words: Words) -> list[int]:
    """Return the tokens that ask for what stands between `prompt` and `suffix`. Raises BadRequest where there are none for it."""
    layout, texts = _layout(words), {"prompt": request.prompt or "", "suffix": request.suffix or "", "": ""}
    if not layout:
        raise BadRequest(
            "the vocabulary of this model has no tokens to ask for text in the middle", key="suffix", fix="leave it out"
        )
    found: list[int] = []
    for text, token in zip(layout.values(), _known(words, layout), strict=True):
        first, *others = _pieces(texts[text], layout)
        begun = words.encode(first) if text == "prompt" else _going_on(words, first)  # a prompt begins as any text does
        found += [token, *begun, *(each for piece in others for each in _going_on(words, piece))]
    return found


def middle_ends(words: Words) -> frozenset[int]:
    """Return the tokens that end a text in the middle."""
    return frozenset(_known(words, [*ENDS, *_layout(words)]))


def _layout(words: Words) -> Layout:
    return next((layout for layout in LAYOUTS if len(_known(words, layout)) == len(layout)), {})


def _known(words: Words, written: Iterable[str]) -> list[int]:
    return [found for each in written if (found := words.token_id(each)) is not None]


def _pieces(text: str, layout: Layout) -> Iterator[str]:
    """Yield a text in pieces, so that no token of the layout is in one that spells it out."""
    at = 0
    for mark in re.finditer("|".join(re.escape(mark.lstrip("▁")) for mark in layout), text):
        yield text[at : mark.start() + 1]
        at = mark.start() + 1
    yield text[at:]


def _going_on(words: Words, text: str) -> list[int]:
    """Return the tokens of a text that goes on, without the space that some vocabularies write before the first word."""
    before = words.encode(BEFORE) if text else []
    if not before or not (words.written(before[0]) or "").startswith("▁"):
        return words.encode(text)
    found = words.encode(BEFORE + text)
    return found[len(before) :] if found[: len(before)] == before else words.encode(text)
