r"""Conversations that are one text, as HH-RLHF has them: `\n\nHuman: ...\n\nAssistant: ...`."""

from __future__ import annotations

import re

from gym_data.rows import Conversation

ROLES = {"Human": "user", "Assistant": "assistant"}
_TURN = re.compile(rf"(?:\A|\n\n)({'|'.join(ROLES)}):")


def transcript(text: str) -> Conversation | None:
    """Return the messages of a text, without the white space around them; None where it does not begin as a person's turn."""
    before, *parts = _TURN.split(text)
    if before.strip() or parts[:1] != ["Human"]:
        return None
    turns = zip(parts[0::2], parts[1::2], strict=True)
    return Conversation(tuple({"role": ROLES[who], "content": said.strip()} for who, said in turns))
