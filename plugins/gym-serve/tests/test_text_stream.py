"""The text of tokens as they come is the text of them all, and costs the same for each token, whatever they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import decoders, models

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve.batching.replies import SIGNS
from gym_serve.batching.text_stream import WINDOW, TextStream

HALVES = "🙂".encode()[:2], "語".encode()[:1], b"\x80", b"\xff"
TEXTS = ("a 🙂 b", "日本語 and more", "👩‍👩‍👧", "é", " \n ", "x")


def by_bytes() -> tokenizers.Tokenizer:
    """Return a tokenizer as that of Llama 2: a token for each byte, and some words whose first space is dropped."""
    words = ["▁the", "▁a", "b", "\ufffd"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + at for at, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


class Counted:
    """Decodes, and counts what it is given."""

    def __init__(self, tokenizer: Tokenizer | tokenizers.Tokenizer) -> None:
        self.tokenizer, self.ids, self.most = tokenizer, 0, 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.ids += len(ids)
        self.most = max(self.most, len(ids))
        return str(self.tokenizer.decode(list(ids)))


def streamed(decode: Counted, tokens: Sequence[int], stop: Sequence[str] = ()) -> str:
    stream = TextStream(decode, stop)
    return "".join([*(stream.push(token) for token in tokens), stream.end()])


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer(locate("tiny"))


def bytes_of(tiny: Tokenizer, content: bytes) -> list[int]:
    """Return a token for each byte."""
    single = {bytes([byte]): token for byte, token in byte_tokens(tiny).items()}
    return [single[content[at : at + 1]] for at in range(len(content))]


def byte_tokens(tiny: Tokenizer) -> dict[int, int]:
    return {byte: token for sign, byte in SIGNS.items() if (token := tiny.token_id(sign)) is not None}


def test_the_pieces_are_the_text_of_all_tokens(tiny: Tokenizer) -> None:
    draw = random.Random(0)
    for _ in range(60):
        tokens: list[int] = []
        while len(tokens) < 120:
            content = draw.choice([text.encode() for text in TEXTS] + [half * draw.randint(1, 40) for half in HALVES])
            tokens += bytes_of(tiny, content) if draw.random() < 0.7 else [draw.randrange(tiny.vocab_size)] * 3
        assert streamed(Counted(tiny), tokens) == tiny.decode(tokens)


def test_so_they_are_where_bytes_are_tokens_of_their_own() -> None:
    tokenizer, draw = by_bytes(), random.Random(1)
    for _ in range(60):
        tokens: list[int] = []
        while len(tokens) < 120:
            tokens += list(draw.choice(TEXTS[:4]).encode()) + [draw.choice([256, 257, 258])] * draw.randint(1, 3)
        assert streamed(Counted(tokenizer), tokens) == tokenizer.decode(tokens)


@pytest.mark.parametrize("half", HALVES, ids=bytes.hex)
def test_halves_of_characters_cost_no_more_than_whole_ones(tiny: Tokenizer, half: bytes) -> None:
    for decode, tokens in (
        (Counted(tiny), bytes_of(tiny, half * 2000)),
        (Counted(by_bytes()), list(half * 2000)),
        (Counted(tiny), [tiny.vocab_size + 7] * 2000),  # a logit without a token: no text at all
    ):
        written = streamed(decode, tokens)
        assert decode.ids < 12 * WINDOW * len(tokens) and decode.most < 8 * WINDOW
        assert len(written) == len(str(decode.tokenizer.decode(tokens)))


def test_a_stop_string_of_half_characters_is_found(tiny: Tokenizer) -> None:
    tokens = bytes_of(tiny, b"\xff" * 100 + "日本".encode() + b"\xff" * 100)
    assert streamed(Counted(tiny), tokens, ["本"]) == "\ufffd" * 100 + "日"
