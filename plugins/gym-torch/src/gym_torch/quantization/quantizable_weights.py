"""Which weights of a model are quantized, which are not by convention, and which cannot be.

Heads, embeddings, routers, norms and vectors are not quantized by convention. Matrices of linear layers, `Conv1D` of GPT-2
included, and of experts that transformers runs by its experts interface are quantized. All other weights are reported by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_core import GymError
from gym_torch.console import say
from gym_torch.language_part import in_language_part
from gym_torch.quantization.expert_layer import runs_beside
from gym_torch.quantization.weight_codec import KEY
from gym_torch.quantization.weights import QuantizedMatrix, stored_modules

SKIPPED = "modules_to_not_convert"  #: the option that names what is to stay as it is
#: Where configurations say how many a router chooses from.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
FEW = 3  #: names that a message has


class ToQuantize(NamedTuple):
    """The modules and tensors of a model to quantize."""

    layers: dict[str, nn.Module]
    """Linear layers and such, by name."""
    experts: list[str]
    """Names of tensors `[experts, ., .]`."""

    @property
    def weights(self) -> set[str]:
        """Names of the weights."""
        return {f"{name}.weight" for name in self.layers}.union(self.experts)


def to_quantize(model: PreTrainedModel, skipped: Sequence[str] = (), senses: bool = False) -> ToQuantize:
    """Return what to quantize of a model, without modules whose path contains one of `skipped`.

    Of one that reads images it is the language model alone; with `senses` what encodes images too.

    Raises:
        GymError: there is nothing to quantize, most weights cannot be quantized though `skipped` does not name them, or `skipped`
            names no module.

    """
    places = [name for name, _ in [*model.named_modules(), *model.named_parameters()]]
    odd = next((part for part in skipped if not any(_lies(name, (part,)) for name in places)), None)
    if odd is not None:
        raise GymError(
            f"{type(model).__name__} has no module called {odd}",
            key=f"{KEY}.{SKIPPED}",
            fix="name modules as model.named_modules() does, or the last parts of their paths",
        )
    kept, routers = set(map(id, _by_convention(model))), routing(model)
    backbone = {id(module) for module in model.base_model.modules()}  # heads that score lie beside it
    tied = {key for pair in (model.all_tied_weights_keys or {}).items() for key in pair}
    found, wanted = ToQuantize({}, []), (lambda name: True) if senses else in_language_part(model)
    for name, module in model.named_modules():
        if id(module) in kept or id(module) not in backbone or _lies(name, skipped) or not wanted(name):
            continue
        if isinstance(module, nn.Linear | Conv1D) and not isinstance(module, QuantizedMatrix):
            if f"{name}.weight" not in tied and id(module.weight) not in routers:
                found.layers[name] = module
        elif runs_beside(module):
            stacks = (own for own, weight in module.named_parameters(recurse=False) if weight.dim() == 3)
            paths = (f"{name}.{own}" for own in stacks)
            found.experts.extend(path for path in paths if path not in tied and not _lies(path, skipped))
    _worth_it(model, found, skipped, wanted)
    return found


def left_over(model: PreTrainedModel, taken: Collection[str] = ()) -> dict[str, int]:
    """Return the sizes of weights, by name, that are neither quantized nor `taken`, and that convention does not exclude."""
    usual = {id(weight) for module in _by_convention(model) for weight in module.parameters(recurse=False)}
    usual |= routing(model)
    return {
        name: weight.numel()
        for name, weight in model.base_model.named_parameters(prefix=_prefix(model))
        if weight.dim() > 1 and name not in taken and id(weight) not in usual
    }


def told(model: PreTrainedModel) -> dict[str, Any]:
    """Return the entry of `run.json` about quantized weights; empty where none is quantized."""
    stored = stored_modules(model)
    if not stored:
        return {}
    numbers, left = sum(module.numbers for module in stored.values()), left_over(model)
    size = sum(tensor.nbytes for module in stored.values() for tensor in module.buffers(recurse=False))
    return {
        "modules": len(stored),
        "parameters": numbers,
        "bytes": size,
        "bits_per_parameter": round(8 * size / numbers, 3),
        "full_precision": {"parameters": sum(left.values()), "modules": sorted({_module(name) for name in left})},
    }


def tell(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """Print a line about the quantized weights of the model `name`; return what `told` does."""
    found = told(model)
    if found:
        bits, rest = found["bits_per_parameter"], found["full_precision"]
        sizes = (size / 2**20 for size in (found["bytes"], found["parameters"] * model.dtype.itemsize))
        held = "{:,.1f} MiB instead of {:,.1f}".format(*sizes)
        line = f"{found['parameters']:,} parameters of {found['modules']:,} modules in {bits:.3g} bits, {held}"
        left = (
            f"; {rest['parameters']:,} parameters stay in full precision: {_few(rest['modules'])}"
            if rest["modules"]
            else ""
        )
        say(f"{name}: {line}{left}")
    return found


def _worth_it(model: PreTrainedModel, found: ToQuantize, skipped: Sequence[str], wanted: Callable[[str], bool]) -> None:
    """Raise GymError where nothing is quantized, or less of what is `wanted` than cannot be and was not skipped on request."""
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    unused = left_over(model, found.weights).items()
    left = {name: size for name, size in unused if wanted(name) and not _lies(name, skipped)}
    rest, taken = sum(left.values()), sum(sizes[name] for name in found.weights)
    kind, names = type(model).__name__, _few(sorted({_module(name) for name in left}))
    if rest > taken:
        ends = dict.fromkeys(".".join(_module(name).split(".")[-2:]) for name in left)
        share = f"{100 * rest / (rest + taken):.0f} %"
        raise GymError(
            f"{share} of the weights of {kind} would stay in full precision: nothing here quantizes {names}",
            key=KEY,
            fix=f"name another model, or set `{SKIPPED}: [{', '.join(ends)}]` to have it so",
        )
    if not taken:
        raise GymError(
            f"{kind} has no linear layers to quantize" + f" but {', '.join(skipped)}" * bool(skipped),
            key=KEY,
            fix="leave `quantization` out, or name another model",
        )


def _by_convention(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules that are not quantized by convention: embeddings and output heads."""
    head = model.get_output_embeddings()
    return [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]


def routing(model: PreTrainedModel) -> set[int]:
    """Return the ids of the weights `[experts, .]` of routers, and of the biases of experts.

    They lie in what transformers declares to be a router, or right beside the experts; elsewhere a layer with as many outputs
    as there are experts is like any other.
    """
    options = model.config.get_text_config()
    counts = {found for key in EXPERTS if isinstance(found := getattr(options, key, None), int)}
    if not counts:
        return set()
    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    declared = [(part._can_record_outputs or {}).get("router_logits", ()) for part in models]
    kinds = tuple(
        {each.target_class for some in declared for each in (some if isinstance(some, list | tuple) else [some])}
    )
    held: list[nn.Parameter] = []
    for part in model.modules():
        if isinstance(part, kinds) and not any(isinstance(inner, kinds) for inner in [*part.modules()][1:]):
            held += part.parameters()
        children = dict(part.named_children())
        if "experts" in children or any(map(runs_beside, children.values())):
            held += [weight for child in children.values() for weight in child.parameters(recurse=False)]
    return {id(weight) for weight in held if weight.dim() == 2 and weight.shape[0] in counts}


def _prefix(model: PreTrainedModel) -> str:
    """Return the path of the backbone in a model, with a dot."""
    return next(name for name, module in model.named_modules() if module is model.base_model)


def _lies(name: str, parts: Iterable[str]) -> bool:
    """Return whether `name` contains one of `parts` as whole path components."""
    return any(f".{part}." in f".{name}." for part in parts)


def _module(name: str) -> str:
    """Return the path of the module that a weight lies in, the same for all layers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name.rpartition(".")[0])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + f" and {len(names) - FEW} more" * (len(names) > FEW)
