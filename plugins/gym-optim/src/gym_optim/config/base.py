"""What the options of the optimizers here have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gym_core import Flat, Optimizer
from gym_core.component import load_object
from gym_optim.roles import INSIDE

Groups = Sequence[Mapping[str, Any]]  #: as `build` gets them, with the shape of each parameter in its place
Shape = tuple[int, ...]

Beta1 = Annotated[float, Field(ge=0, lt=1), Flat("adam_beta1")]
Beta2 = Annotated[float, Field(ge=0, lt=1), Flat("adam_beta2")]
Epsilon = Annotated[float, Field(gt=0), Flat("adam_epsilon", convert=float)]
Decay = Annotated[float, Field(ge=0), Flat("weight_decay")]


def only(meant: Any) -> Callable[[Any], None]:
    """Return a conversion for a flat key that may say what is done anyway, and nothing else."""

    def said(value: Any) -> None:
        if value != meant:
            raise ValueError(f"only `{meant}` is done here, not `{value}`")

    return said


class TorchOptimizer(Optimizer):
    """Base: the options are the keyword arguments of what `target` names."""

    device: ClassVar[str] = ""
    """Kind of device that parameters must be on, such as `cuda`; empty for any."""
    numberwise: ClassVar[bool] = False
    """Whether each number moves by its own gradient alone, so that parameters may be cut into shards."""

    def build(self, **context: Any) -> Any:
        """Call `target` with the parameters, the learning rate and every option."""
        options = {name: getattr(self, name) for name in type(self).model_fields}
        inside = options.pop("in_backward", False)
        made = load_object(self.target)(context["parameters"], lr=context["learning_rate"], **options)
        return load_object("gym_optim.in_backward:InBackward")(made) if inside else made

    def held_gradients(self, parameters: Groups) -> int | None:
        """Return the bytes of gradients that stay until the step, where the others go as they come; None: all of them stay."""
        return None


class Alone(TorchOptimizer):
    """Base of optimizers that look at one parameter at a time."""

    in_backward: bool = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""

    def held_gradients(self, parameters: Groups) -> int | None:
        """Return 0 where each parameter is updated when its gradient is there."""
        return 0 if self.in_backward else None


class AdamOptions(TorchOptimizer):
    """The options of Adam with decoupled weight decay."""

    beta1: Beta1 = 0.9
    """Decay of the running mean of the gradient."""
    beta2: Beta2 = 0.999
    """Decay of the running mean of its square."""
    epsilon: Epsilon = 1e-8
    """Added to the denominator."""
    weight_decay: Decay = 0.0
    """Share of each matrix taken away per step, times the learning rate; norms and biases are left alone."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two fp32 moments for each parameter."""
        return each(parameters, lambda group, name, shape: 8 * prod(shape))


def each(parameters: Groups, size: Callable[[Mapping[str, Any], str, Shape], int]) -> int:
    """Sum `size(group, name, shape)` over all parameters."""
    return sum(size(group, name, shape) for group in parameters for name, shape in group["params"])


def is_inside(group: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a parameter of two dimensions or more stands inside the model."""
    return len(shape) >= 2 and group.get("role", "matrix") in INSIDE


def coded(count: int, bits: int = 8) -> int:
    """Return the bytes of so many numbers as codes, with a scale for each block of 256."""
    return -(-count * bits // 8) + 4 * -(-count // 256)
