"""Scores from reward models: the numbers that a linear head makes of states of a language model.

It reads what its own chat template makes of the messages and the completion. Of a whole completion, a value head looks at the
token that ends it, where it was trained; a classifier of transformers looks at the last token of the text, whatever a template
puts behind the completion. Of a completion in steps it looks at the token that ends each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from gym_core import Artifact, GymError
from gym_data.formats.parsing import tools_of
from gym_data.location import artifact_at
from gym_data.tokenizer import Tokenizer, Tokens
from gym_rewards.reward import RewardInput
from gym_torch.batch import Piece, padded
from gym_torch.checkpoints.open_artifact import CERTIFICATE, open_artifact
from gym_torch.kernels import precision_probe
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.layout_support import layout_for
from gym_torch.model.read_weights import read_model
from gym_torch.model.scalar_head import ScalarHead
from gym_torch.model_files import check_weights
from gym_torch.quantization.quantizable_weights import tell
from gym_torch.recorded_components import media_of

KEY = "algorithm.rewards"

if TYPE_CHECKING:
    from gym_rl.reward_models import Model, ProcessModel


@dataclass(frozen=True)
class _Opened:
    """A reward model in memory."""

    model: PreTrainedModel
    head: ScalarHead
    path: Path  #: where its tokenizer is
    to_the_end: bool  #: whether it looks at what the template puts behind a completion


class _Scorer(ABC):
    """Scores places of texts, a few texts at a time."""

    another: ClassVar[
        tuple[str, str, str]
    ]  #: the task of models that learnt to score other places, what they are, what to do

    def __init__(self, config: Model) -> None:
        """Load the model. Raises GymError where there is none, or none that makes one number of a text."""
        if artifact_at(config.path, config.revision).task == self.another[0]:
            raise GymError(f"it is a {self.another[1]} reward model", where=config.path, key=KEY, fix=self.another[2])
        opened = _open(config)
        tell(opened.model, f"reward model {config.path}")
        self.config, self.tokenizer, self.to_the_end = config, Tokenizer(opened.path), opened.to_the_end
        self.layout = layout_for(opened.model)
        self.model = opened.model.to(precision_probe.device()).requires_grad_(False).eval()
        self.head = opened.head.to(precision_probe.device())

    @abstractmethod
    def read(self, item: RewardInput) -> tuple[Tokens, list[int]]:
        """Return the tokens of a completion after its prompt, and where among them it is scored."""

    def tools(self, item: RewardInput) -> Sequence[Mapping[str, Any]]:
        """Return what the prompt of a completion offered. Raises ValueError where its row holds no such thing."""
        return tools_of(item.row.get(self.config.tools))

    @torch.no_grad()
    def scores(self, inputs: Sequence[RewardInput]) -> list[list[float]]:
        """Return the scores of each completion, one for each of its places."""
        read = [self.read(item) for item in inputs]
        order = sorted(range(len(read)), key=lambda number: len(read[number][0]))
        found: list[list[float]] = [[] for _ in read]
        for start in range(0, len(order), self.config.batch):
            chosen = order[start : start + self.config.batch]
            batch = self.layout.lay_out([_text(inputs[number].id, read[number][0]) for number in chosen], ())
            ends = [(len(read[number][0]), read[number][1]) for number in chosen]
            places = batch.places([[at - size for at in own] for size, own in ends]).to(self.model.device)
            scores = iter(self.head(hidden_states(self.model, batch.to(self.model.device), places)).tolist())
            for number in chosen:
                found[number] = [next(scores) for _ in read[number][1]]
        return found


class ModelScore(_Scorer):
    """Scores whole completions."""

    another = "token-classification", "process", "name it `{name: process-model, path: ...}`"

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return a score for each completion."""
        return [score for (score,) in self.scores(inputs)]

    def read(self, item: RewardInput) -> tuple[Tokens, list[int]]:
        """Return prompt and completion up to the token that is scored."""
        said = {"role": "assistant", "content": item.text}
        tokens, own = self.tokenizer.chat([*map(dict, item.context), said], self.tools(item))
        if not self.to_the_end:
            tokens = tokens[: int(np.flatnonzero(own)[-1]) + 1]
        return tokens, [len(tokens) - 1]


class ProcessScore(_Scorer):
    """Scores the steps of completions, and combines what it finds into one number."""

    another = "sequence-classification", "whole-answer", "name it `{name: model, path: ...}`"

    def __init__(self, config: ProcessModel) -> None:
        """Load the model. Raises GymError where there is none, or none that makes one number of a state."""
        super().__init__(config)
        self.separator, self.combine = config.separator, COMBINED[config.combine]

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return a number from 0 to 1 for each completion; one without a step has none that is right."""
        chances = [torch.tensor(scores).double().sigmoid().tolist() for scores in self.scores(inputs)]
        return [self.combine(steps) if steps else 0.0 for steps in chances]

    def read(self, item: RewardInput) -> tuple[Tokens, list[int]]:
        """Return prompt and steps, and where each step ends."""
        steps = [step for step in item.text.split(self.separator) if step.strip()]
        tokens, ends = self.tokenizer.steps([*map(dict, item.context)], self.tools(item), steps, self.separator)
        return tokens, ends.tolist()


#: From how likely each step is right to what the completion earns.
COMBINED: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": prod,
    "last": lambda chances: chances[-1],
    "mean": fmean,
}


def _text(id: str, tokens: Tokens) -> Piece:
    return Piece(id, tokens, np.zeros(len(tokens), dtype=np.bool_))


#: what ends the names of the classes that make one number of each text, or of each token
CLASSIFIERS = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}


def _open(config: Model) -> _Opened:
    artifact = artifact_at(config.path, config.revision)
    if artifact != Artifact(artifact.path):
        if media_of(artifact) is not None:
            instead = "train one on rows without images, or have a function or an endpoint judge: `python`, `http`"
            raise _error(artifact.path, "learnt to look at images, and completions are scored by their text", instead)
        opened = open_artifact(artifact, quantizer=config.quantization)
        return _Opened(opened.model, ScalarHead.read(artifact.path), artifact.path, False)
    path = artifact.path
    check_weights(path)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    dtype = torch.float32 if precision_probe.device().type == "cpu" else "auto"
    try:
        shape = AutoConfig.from_pretrained(path, **options)
        options |= {"dtype": dtype, "config": shape}
        kind = next(
            (kind for name in shape.architectures or () for end, kind in CLASSIFIERS.items() if name.endswith(end)),
            None,
        )
        if kind is None:
            return _Opened(read_model(path, options, config.quantization), ScalarHead.read(path), path, False)
        if shape.num_labels != 1:
            raise _error(path, f"has {shape.num_labels} labels, and a reward is one number")
        model = read_model(path, options, config.quantization, kind)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise _error(path, f"cannot be loaded: {str(error).strip().splitlines()[0][:300]}") from error
    ours = (path / CERTIFICATE).is_file()  # then it learnt to look at the token that ends a completion
    return _Opened(model, _head_of(model, path), path, not ours)


@torch.no_grad()
def _head_of(model: PreTrainedModel, path: Path) -> ScalarHead:
    """Return the head of a classifier, checked against what the classifier says itself."""
    score = dict(model.named_children()).get("score")
    if not isinstance(score, nn.Linear):
        raise _error(path, f"is a {type(model).__name__}, whose score is no linear map of its last state")
    head = ScalarHead(score.in_features)
    head.weight.copy_(score.weight)
    if score.bias is not None:
        head.bias.copy_(score.bias)
    tokens = np.array([token for token in range(1, 6) if token != model.config.pad_token_id][:3], dtype=np.int32)
    batch = padded([Piece("probe", tokens, np.zeros(3, dtype=np.bool_))])
    model.eval()
    expected = model(input_ids=batch.tokens).logits.flatten()[-1:].float()
    found = head(hidden_states(model, batch, batch.ends))
    rounding = 1e-4 if model.dtype == torch.float32 else 5e-2
    if not torch.allclose(found, expected, rtol=rounding, atol=rounding):
        raise _error(path, f"is a {type(model).__name__}, which does more than a linear map of its last state")
    return head


NAME_ANOTHER = "name a run that trained a value head, or a sequence classifier with one label"


def _error(path: Path, why: str, fix: str = NAME_ANOTHER) -> GymError:
    return GymError(f"the reward model {why}", where=str(path), key=KEY, fix=fix)
