"""The same losses once more, slow and obvious, for tests to compare with. Shares no code with `losses` or `objective`.

Without a trainer there is no reference: the log-probability of every response under it is 0, here and there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_data.examples import Pair

Oracle = Callable[[Any, PreTrainedModel, Sequence[Pair]], Tensor]
Tokens = list[Tensor]  #: log-probability of each token of a response


def _over(pairs: Callable[[Any, Tokens, Tokens], Tensor]) -> Oracle:
    """Make an oracle of what one pair costs."""

    def oracle(config: Any, model: PreTrainedModel, examples: Sequence[Pair]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for pair in examples:
            chosen, rejected = _log_probs(model, pair)
            total = total + pairs(config, chosen, rejected) - config.ftx * _mean(chosen)
        return total

    return oracle


def _log_probs(model: PreTrainedModel, pair: Pair) -> tuple[Tokens, Tokens]:
    """Return the log-probabilities of the trained tokens of both sides, each read alone from its first token on."""
    middle = pair.shared + pair.chosen
    found = []
    for start, end in ((pair.shared, middle), (middle, len(pair.tokens))):
        tokens = [*pair.tokens[: pair.shared].tolist(), *pair.tokens[start:end].tolist()]
        trained = [False] * pair.shared + pair.trained[start:end].tolist()
        probabilities = torch.softmax(model(input_ids=torch.tensor([tokens])).logits[0], dim=1)
        found.append([probabilities[at - 1, tokens[at]].log() for at in range(1, len(tokens)) if trained[at]])
    return found[0], found[1]


def _sum(tokens: Tokens) -> Tensor:
    return torch.stack(tokens).sum()


def _mean(tokens: Tokens) -> Tensor:
    return _sum(tokens) / len(tokens)


def _sigmoid(value: Tensor) -> Tensor:
    return 1 / (1 + (-value).exp())


def _dpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return -_sigmoid(config.beta * (_sum(chosen) - _sum(rejected))).log()


def _dpo_norm(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return -_sigmoid(config.beta * (_mean(chosen) - _mean(rejected))).log()


def _ld_dpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    common = min(len(chosen), len(rejected))
    better, worse = (
        sum(value if place < common else config.ld_alpha * value for place, value in enumerate(side))
        for side in (chosen, rejected)
    )
    return -_sigmoid(config.beta * (better - worse)).log()


def _cdpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    p, wrong = _sigmoid(config.beta * (_sum(chosen) - _sum(rejected))), config.label_smoothing
    return -(1 - wrong) * p.log() - wrong * (1 - p).log()


def _robust_dpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    p, wrong = _sigmoid(config.beta * (_sum(chosen) - _sum(rejected))), config.label_smoothing
    return (-(1 - wrong) * p.log() + wrong * (1 - p).log()) / (1 - 2 * wrong)


def _ipo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return (_mean(chosen) - _mean(rejected) - 1 / (2 * config.beta)) ** 2


def _hinge(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return torch.clamp(1 - config.beta * (_sum(chosen) - _sum(rejected)), min=0)


def _bco_pair(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    better, worse = _sigmoid(config.beta * _sum(chosen)), _sigmoid(config.beta * _sum(rejected))
    return -better.log() - (1 - worse).log()


def _exo_pair(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    p, wrong = _sigmoid(config.beta * (_sum(chosen) - _sum(rejected))), config.label_smoothing
    return p * (p.log() - log(1 - wrong)) + (1 - p) * ((1 - p).log() - log(wrong))


def _nca_pair(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    better, worse = _sigmoid(config.beta * _sum(chosen)), _sigmoid(config.beta * _sum(rejected))
    return -better.log() - 0.5 * (1 - better).log() - 0.5 * (1 - worse).log()


def _sppo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    aim = 1 / (2 * config.beta)
    return (_sum(chosen) - aim) ** 2 + (_sum(rejected) + aim) ** 2


def _apo_zero(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return 1 - _sigmoid(config.beta * _sum(chosen)) + _sigmoid(config.beta * _sum(rejected))


def _apo_down(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    better = _sum(chosen)
    return _sigmoid(config.beta * better) + 1 - _sigmoid(config.beta * (better - _sum(rejected)))


def _discopop(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    margin = config.beta * (_sum(chosen) - _sum(rejected))
    share = _sigmoid(margin / config.discopop_tau)
    return -(1 - share) * _sigmoid(margin).log() + share * (-margin).exp()


def _simpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    return -_sigmoid(config.beta * (_mean(chosen) - _mean(rejected)) - config.simpo_gamma).log()


def _orpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    better, worse = _mean(chosen).exp(), _mean(rejected).exp()
    ratio = (better / (1 - better)) / (worse / (1 - worse))
    return -better.log() - config.beta * _sigmoid(ratio.log()).log()


_PARTS = {
    "apo_down": _apo_down, "apo_zero": _apo_zero, "bco_pair": _bco_pair, "dpo": _dpo, "hinge": _hinge, "nca": _nca_pair,
    "sppo": _sppo,
}  # fmt: skip


def _mpo(config: Any, chosen: Tokens, rejected: Tokens) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for name, weight in config.loss_weights.items():
        total = total + weight * _PARTS[name](config, chosen, rejected)
    return total


dpo, dpo_norm, ld_dpo, cdpo, robust_dpo = map(_over, (_dpo, _dpo_norm, _ld_dpo, _cdpo, _robust_dpo))
ipo, hinge, bco_pair, exo_pair, nca_pair = map(_over, (_ipo, _hinge, _bco_pair, _exo_pair, _nca_pair))
sppo, apo_zero, apo_down, discopop = map(_over, (_sppo, _apo_zero, _apo_down, _discopop))
simpo, orpo, cpo, mpo = map(_over, (_simpo, _orpo, _dpo, _mpo))
