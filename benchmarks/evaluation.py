"""Log-likelihoods of a multiple-choice task, beside the `hf` model of lm-eval.

The 30M model with random weights, in fp32. Each question has four answers of a few tokens after a context of its own, and all
have the same examples before them, as with `--num_fewshot`. Both sides get the same tokens; `hf` runs at the best of its batch
sizes. They choose the same answers, so accuracy is the same. In turns; the best of each counts, for others were disturbed.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from peers.random_model import random_model
from peers.shape import SMALL
from report import Report, main

import gym_tiny
from gym_core import Artifact
from gym_data.tokenizer import Tokenizer
from gym_eval.language_model import LanguageModel
from gym_eval.log_likelihoods import Continuation, LogLikelihood

EXAMPLES, CONTEXT, ANSWERS = 384, 128, 4  #: tokens that all questions share, tokens of a question, answers of each
TOKENIZER = Path(gym_tiny.__file__).parent / "model"  #: which both sides must have, and neither uses
TARGET = 3.0  #: times as fast


def measure(report: Report, quick: bool) -> None:
    """Take turns."""
    torch.set_num_threads(2)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    asked = _questions(4 if quick else 32)
    ours = LanguageModel(
        "random",
        Artifact(TOKENIZER),
        random_model(),
        Tokenizer(TOKENIZER),
        2048,
        8192,
        None,
        lambda keys: nullcontext(),
    )
    sizes = (1, 8) if quick else (1, 4, 16)
    theirs = {size: HFLM(random_model(), tokenizer=str(TOKENIZER), max_length=2048, batch_size=size) for size in sizes}
    times: dict[str, list[float]] = {}
    for _ in range(2 if quick else 4):
        found, seconds = _timed(lambda: ours.log_likelihoods(asked))
        times.setdefault("gym", []).append(seconds)
        for size, model in theirs.items():
            expected, seconds = _timed(lambda model=model: _of_hf(model, asked))
            times.setdefault(f"hf, batch_size={size}", []).append(seconds)
    best = {name: min(each) for name, each in times.items()}
    report.figures["continuations/s"] = {name: round(len(asked) / seconds, 1) for name, seconds in best.items()}
    apart = max(abs(one.log_prob - other[0]) for one, other in zip(found, expected, strict=True))
    report.check("largest difference of log-likelihoods", round(apart, 6), at_most=1e-3)
    alike = [_chosen([one.log_prob for one in found]), _chosen([other[0] for other in expected])]
    report.figures["accuracy"] = {
        name: sum(at == 0 for at in each) / len(each) for name, each in zip(("gym", "hf"), alike, strict=True)
    }
    report.check(
        "questions at which both choose the same answer", sum(map(int.__eq__, *alike)) / len(alike[0]), at_least=1.0
    )
    hf = min(seconds for name, seconds in best.items() if name != "gym")
    report.check("times as fast", round(hf / best["gym"], 2), at_least=TARGET)


def _questions(count: int) -> list[Continuation]:
    drawn = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [drawn.randrange(3, SMALL) for _ in range(length)]

    examples = tokens(EXAMPLES)
    contexts = [examples + tokens(CONTEXT) for _ in range(count)]
    return [Continuation(context, tokens(drawn.randint(1, 6))) for context in contexts for _ in range(ANSWERS)]


def _of_hf(model: HFLM, asked: list[Continuation]) -> Any:
    requests = [((str(number), ""), list(one.context), list(one.continuation)) for number, one in enumerate(asked)]
    return model._loglikelihood_tokens(requests, disable_tqdm=True)


def _timed(call: Any) -> tuple[list[LogLikelihood], float]:
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def _chosen(scores: list[float]) -> list[int]:
    groups = [scores[at : at + ANSWERS] for at in range(0, len(scores), ANSWERS)]
    return [group.index(max(group)) for group in groups]


if __name__ == "__main__":
    main(measure, __doc__ or "")
