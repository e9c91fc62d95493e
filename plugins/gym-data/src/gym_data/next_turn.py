"""What follows an answer that was sampled: messages, as tokens, up to where the assistant writes again.

A chat template renders whole conversations, and may write earlier answers otherwise than they were sampled: without thoughts, or
with other tokens for the same text. Here an answer stays as it is: the template is asked about another answer, and what it writes
behind that one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_core import DataError
from gym_data.chat.answer_format import ASKED, CONTENT
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.special_tokens import as_text
from gym_data.chat.template_omissions import shows
from gym_data.rows import Message
from gym_data.tokenizer import Tokenizer


class NextTurn:
    """Writes what stands between two answers, as the chat template of a tokenizer has it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find out what ends an answer. Raises DataError where there is no chat template."""
        self.tokenizer = tokenizer
        question = tokenizer.render([ASKED])
        begun, behind = self._encoded(question)[:1], self._encoded(question.partition(str(ASKED["content"]))[2])[:1]
        # What ends a question ends an answer too, where more follows: some templates end the last answer with another token.
        ends = [token for token in behind if tokenizer.written(token) in tokenizer.special and token not in begun]
        self.ends = {*tokenizer.turn_ends, *ends, tokenizer.eos_id}

    def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        last: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens from behind an answer, whose `last` token ended it, through messages, to the next answer.

        With None no token ended it, as where a stop string did: what ends an answer is then the first of those returned.
        `tools` and `values` are what the prompt was written with. What no tokenizer takes for text is replaced. Raises DataError
        where the template refuses the messages, or leaves out what one of them says.
        """
        said: list[Message] = as_text(list(messages))
        try:
            answered = [ASKED, {"role": "assistant", "content": CONTENT}, *said]
            behind = self.tokenizer.render(answered, True, tools, values).partition(CONTENT)[2]
        except ValueError as error:
            raise _refused(f"the chat template refuses what an environment said: {error}") from None
        quoted = [self.tokenizer.quoted(each["content"], each["role"]) for each in said]
        if hidden := [each["role"] for each, text in zip(said, quoted, strict=True) if not shows(text, behind)]:
            raise _refused(f"the chat template leaves out what an environment said as `{hidden[0]}`")
        if last is None:
            return self._encoded(behind)
        found = self._encoded(behind.lstrip())  # some templates put a space between an answer and what ends it
        if found and found[0] in {*self.ends, last}:
            return found[1:]
        # Tokens of a beginning may differ from those of the same text behind another token.
        found = self._encoded((self.tokenizer.written(last) or "") + behind)
        return found[1:] if found[:1] == [last] else self._encoded(behind)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode_rendered([Rendered(text, ())])[0][0].tolist()
        return ids


def _refused(why: str) -> DataError:
    return DataError(why, key="algorithm.environment", fix="name another role for its messages, such as `user`")
