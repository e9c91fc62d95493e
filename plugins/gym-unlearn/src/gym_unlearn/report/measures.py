"""What a model says of answers that are known: how probable they are, and how much of them it would write itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import DataError
from gym_data.examples import UnpairedExample
from gym_torch.batch import Piece
from gym_torch.generation.generator import Generator
from gym_torch.model.layout_support import layout_for
from gym_torch.model.log_probs import map_logits
from gym_torch.policy import Policy
from gym_torch.prompt_responses import PromptResponses, lay_out

Floats = npt.NDArray[np.float64]
BATCH = 16  #: answers in one pass
LOWEST = 0.4  #: share of the tokens of an answer, the least likely ones, whose mean tells members from others (MUSE)
MEANS = ("probability", "exact_memorization", "exact_match", "rouge")
_WORDS = re.compile(r"[\u3400-\u9fff]|\w+")


@dataclass(frozen=True)
class Measures:
    """Numbers of answers, `[answers]` each."""

    probability: Floats  #: exp of the mean log-probability of a token (TOFU)
    exact_memorization: Floats  #: share of the tokens that are the most likely ones, after the right ones before them
    exact_match: Floats  #: whether all of them are: greedy decoding then writes the answer
    rouge: Floats  #: recall of ROUGE-L of what greedy decoding writes
    lowest: Floats  #: mean log-probability of the least likely tokens: Min-K%, which tells members from others

    def means(self) -> dict[str, float]:
        """Return the means of what users look at."""
        return {name: float(vars(self)[name].mean()) for name in MEANS}


def measures(model: PreTrainedModel, tokenizer: Any, examples: Sequence[UnpairedExample]) -> Measures:
    """Return what a model says of answers. Raises DataError where a row has no prompt before its answer."""
    policy: Policy[Any] = Policy(model.eval())
    scored = list(_scores(policy, examples))
    written = _written(model, tokenizer, examples)
    right = [np.array(each[:, 1]) for each in scored]
    return Measures(
        probability=np.array([np.exp(each[:, 0].mean()) for each in scored]),
        exact_memorization=np.array([each.mean() for each in right]),
        exact_match=np.array([float(each.all()) for each in right]),
        rouge=np.array([recall(*each) for each in written]),
        lowest=np.array([lowest(each[:, 0]) for each in scored]),
    )


def lowest(log_probs: Floats) -> float:
    """Return the mean of the lowest log-probabilities: the share LOWEST of them, rounded down, and at least one."""
    return float(np.sort(log_probs)[: max(1, int(LOWEST * len(log_probs)))].mean())


def recall(written: str, known: str) -> float:
    """Return the recall of ROUGE-L (Lin 2004): the longest common subsequence of words, over the words of what is known.

    Words are runs of letters and digits without case; a Chinese character is one. An answer without a word has to be the same.
    """
    from rouge_chinese import Rouge

    words, wanted = (_WORDS.findall(text.lower()) for text in (written, known))
    if not (words and wanted):
        return float(words == wanted and written.strip() == known.strip())
    return float(Rouge(metrics=["rouge-l"]).get_scores(" ".join(words), " ".join(wanted))[0]["rouge-l"]["r"])


@torch.no_grad()
def _scores(policy: Policy[Any], examples: Sequence[UnpairedExample]) -> Iterator[Floats]:
    """Yield log p of the tokens of each answer, and whether each is the most likely one, `[tokens, 2]`."""
    layout, device = layout_for(policy.model), policy.model.device
    for start in range(0, len(examples), BATCH):
        pieces = [Piece(each.id, each.tokens, each.trained) for each in examples[start : start + BATCH]]
        batch = lay_out(layout, [PromptResponses(each.tokens[:0], (each,)) for each in pieces], {}).to(device)

        def score(logits: Tensor, rows: slice) -> Tensor:
            targets = batch.targets[rows]  # noqa: B023 - used before the next batch
            own = logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
            return torch.stack([own, (logits.argmax(1) == targets).to(own.dtype)], 1)

        found = map_logits(policy.hidden(batch), policy.head, score, policy.chunk).double().cpu().numpy()
        owners = batch.owner.cpu().numpy()
        for number in range(len(pieces)):
            yield found[owners == number]


def _written(model: PreTrainedModel, tokenizer: Any, examples: Sequence[UnpairedExample]) -> list[tuple[str, str]]:
    """Return what greedy decoding writes after each prompt, no more than twice the answer, and the answer."""
    prompts, answers = [], []
    for each in examples:
        begin = int(np.flatnonzero(each.trained)[0])
        if begin == 0:
            raise DataError("a row has no prompt before its answer", where=each.id, key="data")
        prompts.append([int(token) for token in each.tokens[:begin]])
        answers.append(each.tokens[begin:])
    made = Generator(model, tokenizer).generate(prompts, [2 * len(answer) + 8 for answer in answers])
    pairs = zip(made, answers, strict=True)
    return [
        (tokenizer.decode(done.said, skip_special=True), tokenizer.decode(answer, skip_special=True))
        for done, answer in pairs
    ]
