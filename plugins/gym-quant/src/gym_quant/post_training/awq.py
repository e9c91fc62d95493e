"""AWQ (arXiv:2306.00978): columns that see large inputs are scaled up before rounding, and what makes the inputs down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gym_quant.config.awq import AWQ
from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.clipping import best_clip, unshrunk
from gym_quant.post_training.grid import Codes, Grid
from gym_quant.post_training.method import Layer, Method

MAKERS = {"o_proj": "v_proj", "down_proj": "up_proj"}  #: linear layers whose outputs reach another number by number
LEAST = 1e-4  #: below which no scale is
SAME = 1e-4  #: how far outputs of a layer may be off, relative to their norm, when scales are moved


class Fold(NamedTuple):
    """Weights that read the same inputs, and the module that makes these."""

    names: list[str]
    maker: nn.Module


class ActivationAware(Method[AWQ]):
    """Finds scales, then magnitudes to clip at, then rounds to nearest."""

    def token_weights(self, states: Tensor, predicts: Tensor) -> Tensor:
        """Return the weight of each token, `[n]`: as the options say, over the mean square of its state `[n, dim]`."""
        weights = torch.where(predicts, 1.0, self.config.prompt_weight)
        return weights / states.square().mean(-1).clamp(min=LEAST) if self.config.relative else weights

    def quantize(self, layer: Layer) -> dict[str, Codes]:
        """Return codes for each weight; what makes their inputs is scaled in place."""
        wanted = layer.outputs()
        for fold in folds(layer):
            weights = [layer.linears[name].weight for name in fold.names]
            schemes = [layer.schemes[name] for name in fold.names]
            inputs = layer.inputs[fold.names[0]]
            candidates = list(scales(inputs.magnitudes, weights, schemes, self.config.grid, self.config.duo_scaling))
            scale = best_scale(weights, schemes, layer.dtype, inputs.moments, candidates)
            _move(layer, fold, scale)
            if not (layer.outputs() - wanted).norm() <= SAME * wanted.norm():
                _move(layer, fold, 1 / scale)
                continue
            inputs.divide(scale)
        found = {}
        for name, linear in layer.linears.items():
            scheme, moments = layer.schemes[name], layer.inputs[name].moments
            most = best_clip(linear.weight, scheme, layer.dtype, moments) if self.config.clip else None
            codes = Grid.of(linear.weight, scheme, layer.dtype, most).codes(linear.weight)
            found[name] = unshrunk(codes, linear.weight, moments) if self.config.clip else codes
        return found


def folds(layer: Layer) -> list[Fold]:
    """Return which weights can be scaled: those behind a norm, and those behind a linear layer, number by number."""
    made: dict[int, nn.Module] = {}
    kept: list[Tensor] = []  # an id is that of a tensor that is alive
    read: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            read.setdefault(name, id(args[0]))
            kept.append(args[0])

        return hook

    def output(module: nn.Module, args: tuple[Tensor, ...], found: Tensor) -> None:
        made[id(found)] = module
        kept.append(found)

    norms = [module for module in layer.module.modules() if _is_norm(module)]
    hooks = [norm.register_forward_hook(output) for norm in norms]
    hooks += [linear.register_forward_pre_hook(note(name)) for name, linear in layer.linears.items()]
    layer.outputs()
    for each in hooks:
        each.remove()
    found = []
    for names in layer.together():
        maker = made.get(read.get(names[0], 0))
        if maker is None and len(names) == 1:
            maker = _linear_before(layer, names[0])
        if maker is not None:
            found.append(Fold(names, maker))
    return found


def scales(magnitudes: Tensor, weights: list[Tensor], schemes: list[Scheme], steps: int, duo: bool) -> Iterator[Tensor]:
    """Yield scales `[in]` to try: mean|x|^a, and with `duo` that over mean(|w| / max|w| of the group)^(1 - a); a in [0, 1)."""
    shares = []
    for weight, scheme in zip(weights, schemes, strict=True):
        grouped = weight.abs().view(len(weight), scheme.groups(weight.shape[1]), -1)
        shares.append((grouped / grouped.amax(-1, keepdim=True).clamp(min=LEAST)).view_as(weight))
    share = torch.cat(shares).mean(0)
    for step in range(steps):
        power = step / steps
        for by in (1.0, share.pow(1 - power) + LEAST) if duo else (1.0,):
            scale = (magnitudes.pow(power) / by).clamp(min=LEAST)
            yield scale / (scale.max() * scale.min()).sqrt()


def best_scale(
    weights: list[Tensor], schemes: list[Scheme], dtype: torch.dtype, moments: Tensor, candidates: Iterable[Tensor]
) -> Tensor:
    """Return the scale `[in]` with the least error of the outputs of all weights `[out, in]`."""
    best, found = torch.inf, torch.ones(len(moments))
    for scale in candidates:
        error = 0.0
        for weight, scheme in zip(weights, schemes, strict=True):
            scaled = weight * scale
            apart = Grid.of(scaled, scheme, dtype).codes(scaled).weight().float() / scale - weight
            error += float(((apart @ moments) * apart).sum())
        if error < best:
            best, found = error, scale
    return found


def _move(layer: Layer, fold: Fold, scale: Tensor) -> None:
    """Multiply the columns of weights, and divide what makes their inputs."""
    for name in fold.names:
        layer.linears[name].weight.data *= scale
    for weight in fold.maker.parameters(recurse=False):
        # rows of a linear layer; its bias, or the numbers of a norm
        own = scale[:, None] if weight.dim() == 2 else scale
        weight.data = weight.data / own


def _is_norm(module: nn.Module) -> bool:
    own = dict(module.named_parameters(recurse=False))
    return "weight" in own and own["weight"].dim() == 1


def _linear_before(layer: Layer, name: str) -> nn.Module | None:
    """Return the linear layer whose outputs reach this one number by number, where names and sizes say so."""
    path = name.split(".")
    before = layer.linears.get(".".join([*path[:-2], MAKERS.get(path[-2], ""), path[-1]]))
    return before if before is not None and before.out_features == layer.linears[name].in_features else None
