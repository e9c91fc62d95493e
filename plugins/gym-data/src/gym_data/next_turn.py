"""What follows an answer that was sampled: messages, as tokens, up to where the assistant writes again.

A chat template renders whole conversations, and may write earlier answers otherwise than they were sampled: without thoughts, or
with other tokens for the same text. Here an answer stays as it is: the template is asked about another answer, and what it writes
behind that one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from gym_core import DataError
from gym_data.chat.answer_format import ASKED, CONTENT
from gym_data.chat.loss_masks import Rendered
from gym_data.rows import Message
from gym_data.tokenizer import Tokenizer


class NextTurn:
    """Writes what stands between two answers, as the chat template of a tokenizer has it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find out what ends an answer. Raises DataError where there is no chat template."""
        self.tokenizer = tokenizer
        tokenizer.render([ASKED], generation_prompt=True)
        self.ends = {*tokenizer.turn_ends, tokenizer.eos_id}

    def tokens(self, messages: Sequence[Message], last: int) -> list[int]:
        """Return the tokens from behind an answer, whose `last` token ended it, through messages, to the next answer.

        Raises DataError where the template refuses the messages, or shows none of them.
        """
        try:
            text = self.tokenizer.render([ASKED, {"role": "assistant", "content": CONTENT}, *messages], True)
        except ValueError as error:
            raise DataError(
                f"the chat template refuses what an environment said: {error}",
                where=str(self.tokenizer.path),
                key="algorithm.environment",
                fix="name another role for its messages, such as `user`",
            ) from None
        behind = text.partition(CONTENT)[2]
        found = self._encoded(behind.lstrip())  # some templates put a space between an answer and what ends it
        if found and found[0] in {*self.ends, last}:
            return found[1:]
        return self._encoded(behind)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode_rendered([Rendered(text, ())])[0][0].tolist()
        return ids
