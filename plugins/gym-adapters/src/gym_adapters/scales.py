"""(IA)3 and LN-tuning through peft, which is right for both once it is told which layers."""

from __future__ import annotations

from typing import Any, ClassVar

from peft import IA3Config, LNTuningConfig, PeftConfig
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.config.scales import IA3, LNTuning
from gym_adapters.names import split
from gym_adapters.tuned import Tuned
from gym_core import GymError

#: what model families call the projections to keys and values, and those out of the feed-forward layers
KEYS_VALUES = frozenset({"k_proj", "v_proj", "key", "value", "wk", "wv"})
FEED_FORWARD = frozenset({"down_proj", "fc2", "w2", "dense_4h_to_h"})


class Ia3(Tuned[IA3]):
    """Keys, values and hidden units times a vector each (arXiv:2205.05638, section 3.3); all are one at first.

    peft knows the layers of some families by name; here any model will do whose projections have the usual names.
    """

    def every(self, model: PreTrainedModel) -> list[str]:
        """Return the projections of these kinds that the model has."""
        found = _linear(model) & (KEYS_VALUES | FEED_FORWARD)
        if not found & KEYS_VALUES:
            raise GymError(
                f"{type(model).__name__} has no projections to keys and values by a name known here",
                key="adapter.modules",
                fix="name the layers to scale, such as `modules: qkv_proj`",
            )
        return sorted(found)

    def options(self, modules: Any, extra: list[str] | None) -> PeftConfig:
        """Return the options of (IA)3."""
        inputs = split(self.config.inputs)
        chosen = FEED_FORWARD & {*modules} if inputs == ("all",) else {*inputs}
        if outside := sorted(chosen - {*modules}):
            raise GymError(f"`{outside[0]}` is not among the modules", key="adapter.inputs", fix=", ".join(modules))
        return IA3Config(
            target_modules=modules,
            feedforward_modules=sorted(chosen),
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )


class LnTuning(Tuned[LNTuning]):
    """Normalization layers are copied and the copies train (arXiv:2312.11420, section 2); merging puts the copies in place."""

    fits: ClassVar[tuple[type[nn.Module], ...]] = (nn.Module,)

    def every(self, model: PreTrainedModel) -> list[str]:
        """Return the names of all normalization layers."""
        return norms(model)

    def options(self, modules: Any, extra: list[str] | None) -> PeftConfig:
        """Return the options of LN-tuning."""
        return LNTuningConfig(target_modules=modules, modules_to_save=extra, task_type="CAUSAL_LM")


def norms(model: nn.Module) -> list[str]:
    """Return the last parts of the names of what normalizes: layers with one vector or two, and no layer inside."""
    found = set()
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        leaf = next(module.children(), None) is None
        if own and leaf and all(weight.dim() == 1 for weight in own) and "norm" in type(module).__name__.lower():
            found.add(name.rpartition(".")[2])
    return sorted(found)


def _linear(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
