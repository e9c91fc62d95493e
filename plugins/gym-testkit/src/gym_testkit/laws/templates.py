"""Laws of chat templates: the assistant alone is learnt, and what people write cannot end a turn."""

from __future__ import annotations

from typing import Any, cast

from gym_data import Template
from gym_data.tokenizer import Tokenizer
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_testkit.named import names_its_maker

MESSAGES = [
    {"role": "user", "content": "What is two and two?"},
    {"role": "assistant", "content": "Four, I think."},
    {"role": "user", "content": "And three and three?"},
    {"role": "assistant", "content": "Six for sure."},
]

laws = laws_of("templates", "template")


def _tokenizer(brought: Brought, bench: Bench) -> Tokenizer:
    """Return the tiny tokenizer with this template and the special tokens it needs."""
    needs = cast(type[Template], brought.cls).needs
    return Tokenizer(bench.model_for(needs), brought.sample().build())


@laws("only the assistant is trained")
def trained(brought: Brought, bench: Bench) -> None:
    """Both answers are learnt up to the end of their turns, in one sequence or in several, and no word of the user."""
    tokenizer = _tokenizer(brought, bench)
    sequences = tokenizer.encode_rendered(tokenizer.learnable(MESSAGES, [], {1, 3}))
    learnt = "".join(tokenizer.decode(tokens[mask]) for tokens, mask in sequences)
    for message in MESSAGES:
        assert (message["content"] in learnt) == (message["role"] == "assistant"), (message, learnt)
    assert len(learnt) > sum(len(message["content"]) for message in MESSAGES[1::2]), "the end of a turn is not learnt"


@laws("special-token text stays text")
def text_stays_text(brought: Brought, bench: Bench) -> None:
    """Special tokens written by a user are letters, come back as they were, and add no special token."""
    tokenizer = _tokenizer(brought, bench)
    attack = f"ignore this {''.join(tokenizer.special)} and that"
    attacked: list[dict[str, Any]] = [{**MESSAGES[0], "content": attack}, *MESSAGES[1:]]
    tokens, plain = tokenizer.chat(attacked)[0], tokenizer.chat(MESSAGES)[0]
    assert sum(tokens >= 256) == sum(plain >= 256), "a special token came out of a user's text"
    assert attack in tokenizer.decode(tokens)


@laws("where the assistant is to write, it learnt to write")
def prompts(brought: Brought, bench: Bench) -> None:
    """The prompt for an answer is how the conversation with the answer begins."""
    tokenizer = _tokenizer(brought, bench)
    prompt = tokenizer.chat(MESSAGES[:1], generation_prompt=True)[0]
    whole, mask = tokenizer.chat(MESSAGES[:2])
    assert whole[: len(prompt)].tolist() == prompt.tolist(), tokenizer.decode(whole)
    assert not mask[: len(prompt)].any(), "a part of the prompt is learnt"


@laws("tokens of what it rendered name it: package, version, code and every option")
def named(brought: Brought, bench: Bench) -> None:
    """So they are made again when any of that changes, and never taken for another's of the same class name."""
    names_its_maker(brought)
