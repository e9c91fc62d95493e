"""What tests of completions of several turns share: a tokenizer, and prompts that it wrote."""

from __future__ import annotations

import numpy as np
from gym_rl_bench import Prompt, Prompts

from gym_data.tokenizer import Tokenizer
from gym_tiny.family import MODEL

TOKENIZER = Tokenizer(MODEL)
END = TOKENIZER.turn_ends[0]


def questions(count: int = 4) -> Prompts:
    made = Prompts()
    for number in range(count):
        messages = [{"role": "user", "content": f"{number} + {number + 1} = ?"}]
        tokens, _ = TOKENIZER.chat(messages, generation_prompt=True)
        made.append(Prompt(f"row {number}", tokens, np.zeros(len(tokens), bool), messages, {"times": number % 3}))
    return made
