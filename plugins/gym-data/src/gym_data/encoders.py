"""How rows of each shape become sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gym_data.document_encoding import encode_texts
from gym_data.encoding import Piece, encode_conversations, encode_feedback, encode_prompts
from gym_data.pair_encoding import encode_preferences
from gym_data.row_reader import Reader
from gym_data.stepwise_encoding import encode_steps
from gym_data.tokenizer import Tokenizer

ENCODERS: dict[str, Callable[[Reader, Tokenizer], Iterator[Piece]]] = {
    "conversation": encode_conversations,
    "text": encode_texts,
    "prompt": encode_prompts,
    "preference": encode_preferences,
    "feedback": encode_feedback,
    "stepwise": encode_steps,
}
