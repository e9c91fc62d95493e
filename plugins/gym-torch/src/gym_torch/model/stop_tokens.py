"""Where a trained model stops: at the tokens with which the chat template it was trained on ends the assistant's turn.

`generate` of transformers stops at `generation_config.eos_token_id`, servers also at the tokenizer's `eos_token`. A base model
that learns a chat template brings others: unless both are changed, it writes the next turn as well.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

from gym_core import Recipe
from gym_data.kinds import Data
from gym_data.tokenizer import Tokenizer
from gym_torch.config import torch_algorithm
from gym_torch.kinds import part
from gym_torch.model.loading import LoadedModel

TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def stops(model: PreTrainedModel) -> list[int]:
    """Return the tokens that end what a model generates, by its generation config."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def stop_where_turns_end(model: PreTrainedModel, tokenizer: Tokenizer) -> bool:
    """Have generation stop at the tokens that end a turn, besides those of the model; return whether any was new."""
    own = stops(model)
    new = [token for token in tokenizer.turn_ends if token not in own]
    if not new or model.generation_config is None:
        return False
    together = [*new, *own]
    model.generation_config.eos_token_id = together[0] if len(together) == 1 else together
    return True


def write(model: PreTrainedModel, tokenizer: Tokenizer, into: Path) -> None:
    """Write where the model stops beside the tokenizer files of a model directory.

    The tokenizer's `eos_token` becomes the token that ends a turn, unless the chat template writes `eos_token` for something
    else: that must stay what it was in training.
    """
    assert model.generation_config is not None
    model.generation_config.save_pretrained(into)
    if any("eos_token" in template for template in tokenizer.templates.values()):
        return
    for file in (into / name for name in TOKENIZER_FILES):
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            if file.name == TOKENIZER_FILES[0] or "eos_token" in config:
                config["eos_token"] = tokenizer.written(tokenizer.turn_ends[0])
                file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def of_chats(recipe: Recipe, model: LoadedModel) -> Tokenizer | None:
    """Have a model stop where the turns of the chats end that it learns from; return their tokenizer where that is new to it."""
    data = part(recipe, Data)
    if data is None or torch_algorithm(recipe).rows == "text":
        return None
    tokenizer: Tokenizer | None = data.tokenizer(model.path)
    return tokenizer if tokenizer and stop_where_turns_end(model.model, tokenizer) else None
