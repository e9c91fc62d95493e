"""What models are for, as transformers tells it apart, and what is asked of one to know whether it still does the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from gym_core import GymError
from gym_torch.model.adapted import Plain
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.mapped_weights import Raised
from gym_torch.model.scalar_head import ScalarHead

PROBE = 32  #: tokens that a model is asked about
LENGTHS = (5, 12, 19, 32)  #: of the texts that are scored
#: how far answers may be off, relative to their norm, when weights are rounded to a precision
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Task:
    """How a model for a task is loaded, and what it answers; a head of numbers belongs to all but language models."""

    kind: Any
    """The class of transformers that loads it."""
    asked: Callable[[PreTrainedModel, Tensor], Tensor]
    """What a model of that class says of tokens `[1, n]`."""
    wanted: Callable[[PreTrainedModel, Tensor, ScalarHead | None], Tensor]
    """What a language model under a head says of them: the same."""
    compared: str
    """What these answers are called."""
    scores: bool = True
    """Whether a head of numbers belongs to it."""
    bias: bool = True
    """Whether that of transformers has a bias."""


def _scores(model: PreTrainedModel, tokens: Tensor, head: ScalarHead | None) -> Tensor:
    assert head is not None
    scores: Tensor = head(model.base_model(tokens, use_cache=False).last_hidden_state)
    return scores[0]


TASKS = {
    "causal-lm": Task(
        AutoLanguageModel,
        lambda model, tokens: model(tokens, use_cache=False).logits,
        lambda model, tokens, head: model(tokens, use_cache=False).logits,
        "logits",
        scores=False,
    ),
    "sequence-classification": Task(
        AutoModelForSequenceClassification,
        lambda model, tokens: torch.cat([model(tokens[:, :end], use_cache=False).logits[0] for end in LENGTHS]),
        lambda model, tokens, head: _scores(model, tokens, head)[[end - 1 for end in LENGTHS]],
        "scores",
        bias=False,
    ),
    "token-classification": Task(
        AutoModelForTokenClassification,
        lambda model, tokens: model(tokens, use_cache=False).logits[0, :, 0],
        _scores,
        "scores",
    ),
}


def task_of(name: str) -> Task:
    """Return a task by its name. Raises GymError where there is none."""
    if name not in TASKS:
        raise GymError(f"nothing is known of models for `{name}`", fix=f"known are: {', '.join(TASKS)}")
    return TASKS[name]


def task_in(path: Path) -> str:
    """Return what a directory of transformers is for, as its configuration says: to score, or else to write."""
    try:
        named = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures") or ()
    except (OSError, ValueError, AttributeError):  # whoever opens it says what is wrong with it
        named = ()
    scores = any(str(name).endswith("ForSequenceClassification") for name in named)
    return "sequence-classification" if scores else "causal-lm"


def probe(model: PreTrainedModel) -> Tensor:
    """Return token ids `[1, PROBE]` from all over the vocabulary, none of which stands for padding."""
    config = model.config.get_text_config()
    tokens = (torch.arange(PROBE) * 7919 + 13).remainder(config.vocab_size)
    pad = getattr(config, "pad_token_id", None)  # some configurations have no such entry
    return torch.where(tokens == (-1 if pad is None else pad), (tokens + 1) % config.vocab_size, tokens)[None]


@torch.no_grad()
def answers(ask: Callable[[PreTrainedModel, Tensor], Tensor], model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return what a model answers when everything is computed in fp32, whatever its weights are held in."""
    with Raised():
        return ask(model.eval(), tokens.to(model.device)).float()


def headed(plain: Plain, task: Task, head: ScalarHead | None) -> Plain:
    """Return a language model with a head in the place of its language-model head; without a head, as it is.

    Raises GymError where transformers' head has no room for what ours says.
    """
    if head is None:
        return plain
    bias = float(head.bias.detach())
    if bias and not task.bias:
        raise GymError(
            f"the head adds {bias:.3g} to every score, and a classifier of transformers cannot",
            fix="go on with the run itself as the reward, or train with `center_rewards_coefficient: 0`, which leaves it at 0",
        )
    config = plain.config
    config.num_labels = 1
    text = config.get_text_config()
    if text.pad_token_id == text.eos_token_id:
        text.pad_token_id = None  # a text that ends with it would be scored one token too early
    return Plain(config, _with_head(plain, head, task.bias))


def _with_head(plain: Plain, head: ScalarHead, bias: bool) -> Iterator[tuple[str, Tensor]]:
    yield from plain.weights
    yield "score.weight", head.weight
    if bias:
        yield "score.bias", head.bias


def built(config: PretrainedConfig, task: Task) -> Callable[[PretrainedConfig], PreTrainedModel]:
    """Return what makes a model for a task of a configuration. Raises GymError where transformers has none of the family."""
    if type(config) not in task.kind._model_mapping:
        raise GymError(f"transformers has no {task.kind.__name__} of the family `{config.model_type}`")
    make: Callable[[PretrainedConfig], PreTrainedModel] = task.kind.from_config
    return make
