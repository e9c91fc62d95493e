"""What the options of the optimizers here have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from gym_core.component import construct, load_object
from gym_optim.kinds import Optimizer
from gym_optim.parameter_roles import stacked

Groups = Sequence[Mapping[str, Any]]  #: as `build` gets them, with the shape of each parameter in its place
Shape = tuple[int, ...]

Beta1 = Annotated[float, Field(ge=0, lt=1)]
Beta2 = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0)]


class OptimizerConfig(Optimizer):
    """Base: the options are the keyword arguments of what `target` names."""

    model_config = ConfigDict(allow_inf_nan=False)

    device: ClassVar[str] = ""
    """Kind of device that parameters must be on, such as `cuda`; empty for any."""
    per_parameter: ClassVar[bool] = False
    """Whether it looks at one parameter at a time, and can so be called for each in the backward pass."""
    torch_names: ClassVar[Mapping[str, tuple[str, int | None]]] = {
        "beta1": ("betas", 0),
        "beta2": ("betas", 1),
        "epsilon": ("eps", None),
    }
    """Options that have another name among the keyword arguments of torch's optimizers, and their place there."""

    def build(self, **context: Any) -> Any:
        """Call `target` with the parameters, the learning rate and every option."""
        return construct(self.target, context["parameters"], lr=context["learning_rate"], **self.keywords())

    def keywords(self) -> dict[str, Any]:
        """Return the options by their names in torch."""
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            key, place = self.torch_names.get(name, (name, None))
            value = getattr(self, name)
            found[key] = value if place is None else (*found.get(key, ()), value)
        return found

    @classmethod
    def places(cls) -> dict[str, int]:
        """Return how many numbers an argument of torch's optimizers holds, for each that holds several options."""
        found = [
            key for name, (key, place) in cls.torch_names.items() if name in cls.model_fields and place is not None
        ]
        return dict(Counter(found))

    @classmethod
    def torch_options(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options given by their names in torch, and the defaults of the others; TypeError for what is none."""
        known = cls().keywords()
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no option {name}, only: {', '.join(known)}")
        return known | dict(given)

    @classmethod
    def torch_descriptions(cls) -> dict[str, str]:
        """Return what each option means, by its name in torch."""
        found: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            key = cls.torch_names.get(name, (name, None))[0]
            if key in cls().keywords():
                found[key] = " ".join(filter(None, (found.get(key), " ".join((field.description or "").split()))))
        return found

    @classmethod
    def from_keywords(cls, group: Mapping[str, Any]) -> Self:
        """Return the options that a group of parameters holds by their names in torch.

        Raises pydantic's ValidationError for one out of range.
        """
        places = {name: cls.torch_names.get(name, (name, None)) for name in cls.model_fields}
        given = {name: (group[key], place) for name, (key, place) in places.items() if key in group}
        return cls(**{name: value if place is None else value[place] for name, (value, place) in given.items()})


class WholeParameters(OptimizerConfig):
    """Base of optimizers that need all numbers of a parameter."""

    def elementwise(self) -> bool:
        """Shards would not do."""
        return False


class Elementwise(OptimizerConfig):
    """Base of optimizers that move each number by its own gradient alone."""

    def elementwise(self) -> bool:
        """Shards will do."""
        return True


class AfterBackward(OptimizerConfig):
    """Base of optimizers that update everything in `step`."""

    def keeps_gradients(self) -> bool:
        """All of them."""
        return True

    def updates_in_backward(self) -> bool:
        """Never."""
        return False


class AlwaysInBackward(OptimizerConfig):
    """Base of optimizers that work in the backward pass and nowhere else."""

    def keeps_gradients(self) -> bool:
        """None of them."""
        return False

    def updates_in_backward(self) -> bool:
        """Always."""
        return True


class PerParameter(OptimizerConfig):
    """Base of optimizers that look at one parameter at a time."""

    per_parameter: ClassVar[bool] = True

    in_backward: bool = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""

    def build(self, **context: Any) -> Any:
        """Have it work in the backward pass where that is asked for."""
        made = super().build(**context)
        return load_object("gym_optim.in_backward:InBackward")(made) if self.in_backward else made

    def keywords(self) -> dict[str, Any]:
        """Return the options by their names in torch; where it works is none of them."""
        return {name: value for name, value in super().keywords().items() if name != "in_backward"}

    def keeps_gradients(self) -> bool:
        """All of them, unless it works in the backward pass."""
        return not self.in_backward

    def updates_in_backward(self) -> bool:
        """Where that is asked for."""
        return self.in_backward


class AdamOptions(OptimizerConfig):
    """The options of Adam with decoupled weight decay."""

    beta1: Beta1 = 0.9
    """Decay of the running mean of the gradient (`adam_beta1` in transformers, the first of `betas` in torch)."""
    beta2: Beta2 = 0.999
    """Decay of the running mean of its square (`adam_beta2` in transformers, the second of `betas` in torch)."""
    epsilon: Epsilon = 1e-8
    """Added to the denominator (`adam_epsilon` in transformers)."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two fp32 moments for each parameter."""
        return total_bytes(parameters, lambda group, name, shape: 8 * prod(shape))


def total_bytes(parameters: Groups, size: Callable[[Mapping[str, Any], str, Shape], int]) -> int:
    """Sum `size(group, name, shape)` over all parameters; factors of experts have the shape of their stack."""
    return sum(size(group, name, stacked(group, shape)) for group in parameters for name, shape in group["params"])


def quantized_bytes(count: int, bits: int = 8) -> int:
    """Return the bytes of so many numbers as codes, with a scale for each block of 256."""
    return -(-count * bits // 8) + 4 * -(-count // 256)
