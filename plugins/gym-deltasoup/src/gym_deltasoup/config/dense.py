"""Plain merges: means of models, and steps along what they changed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_deltasoup.config.by_layer import ByLayer
from gym_deltasoup.config.equivariant import Equivariant
from gym_deltasoup.kinds import Merger

Scope = Literal["tensor", "model"]
"""What is looked at as one vector: each tensor, or all of them together."""


class Linear(Equivariant):
    """What holds of every mean whose weights do not depend on the numbers."""


class UniformSoup(Linear):
    """The mean of all inputs: `(1/n) sum_i x_i` (Wortsman et al. 2022)."""

    target: ClassVar[str] = "gym_deltasoup.merging.uniform_soup:UniformSoupRule"

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return `2 clip / n`."""
        return 2 * clip / inputs


class WeightedMean(Linear):
    """The mean with weights that are given with the inputs: `sum_i w_i x_i / sum_i w_i`."""

    target: ClassVar[str] = "gym_deltasoup.merging.weighted_mean:WeightedMeanRule"

    normalize: bool = True
    """Whether it is divided by the sum of the weights; without it is a sum, and weights may be negative."""

    def idempotent(self) -> bool:
        """Return `normalize`."""
        return self.normalize

    def translates(self) -> bool:
        """Return `normalize`."""
        return self.normalize

    def takes_weights(self) -> bool:
        """Return True."""
        return True


class GreedySoup(Merger):
    """The mean of those inputs that together are best (Wortsman et al. 2022, recipe 1).

    Inputs are sorted by their held-out score. Each is added if the mean of what was kept and itself is no worse than before.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.greedy_soup:GreedySoupRule"
    needs_evaluation: ClassVar[bool] = True

    def idempotent(self) -> bool:
        """Return True: any mean of equal inputs is that input."""
        return True

    def order_free(self) -> bool:
        """Return True: the order is that of the scores."""
        return True


class TaskArithmetic(Merger):
    """A step along the sum of what all changed: `scale * sum_i w_i x_i` (Ilharco et al. 2022)."""

    target: ClassVar[str] = "gym_deltasoup.merging.task_arithmetic:TaskArithmeticRule"
    needs_base: ClassVar[bool] = True

    scale: float = Field(default=0.4, allow_inf_nan=False)
    """Scaling coefficient of the sum; 0.3 to 0.5 is usual. Weights of inputs are 1 where none are given. `lambda` in mergekit."""

    def takes_weights(self) -> bool:
        """Return True."""
        return True

    def order_free(self) -> bool:
        """Return True: a sum has no order."""
        return True

    def scales(self) -> bool:
        """Return True: it is linear."""
        return True


class SLERP(Merger):
    """Two inputs, mixed along the arc between them: `sin((1-t)a)/sin(a) x_1 + sin(t a)/sin(a) x_2`, `a` the angle between them.

    Without a base the arc is that of the weights, with one that of the changes. Where the inputs are parallel it is the line.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.slerp:SLERPRule"
    least_inputs: ClassVar[int] = 2
    most_inputs: ClassVar[int | None] = 2

    t: ByLayer[Annotated[float, Field(ge=0, le=1)]] | None = None
    """How far to go from the first input, 0, to the second, 1. Numbers along the layers, `[0, 0.5, 1]`, or values for weights
    whose name has a part, `{self_attn: [0, 1], "*": 0.5}`, where they differ. Left out, it is the share that the second has of
    the weights of both: half where none are given."""
    scope: Scope = "tensor"
    """What has an angle of its own: each tensor, or the whole model."""

    def takes_weights(self) -> bool:
        """Return whether no `t` says the same."""
        return self.t is None

    def idempotent(self) -> bool:
        """Return True: there is no way to go between equal inputs."""
        return True

    def scales(self) -> bool:
        """Return True: the angle stays."""
        return True


class Karcher(Merger):
    """The mean of the directions of all inputs on the sphere (Karcher 1977), times the mean of their lengths.

    It is where the angles to the inputs, squared, have the smallest mean: what `slerp` is for two. Inputs may have weights.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.karcher:KarcherRule"

    max_iter: PositiveInt = 10
    """Most steps from the direction of the mean."""
    tol: Annotated[float, Field(gt=0)] = 1e-5
    """Length of a step, in radians, that is the last."""
    scope: Scope = "tensor"
    """What has a direction of its own: each tensor, or the whole model."""

    def takes_weights(self) -> bool:
        """Return True."""
        return True

    def idempotent(self) -> bool:
        """Return True: equal inputs have one direction."""
        return True

    def order_free(self) -> bool:
        """Return True: it begins with the mean."""
        return True

    def scales(self) -> bool:
        """Return True: angles stay."""
        return True


class ModelStock(Merger):
    """The mean of the changes, shrunk to where many more models would meet (Jang et al. 2024, equation 4).

    `t mean_i x_i` with `t = n c / (1 + (n - 1) c)`, `c` the mean cosine between two changes; below 0 it counts as 0.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.model_stock:ModelStockRule"
    least_inputs: ClassVar[int] = 2
    needs_base: ClassVar[bool] = True

    scope: Scope = "tensor"
    """What has a `t` of its own: each tensor, as published, or the whole model."""

    def idempotent(self) -> bool:
        """Return True: equal changes have cosine 1."""
        return True

    def order_free(self) -> bool:
        """Return True: all pairs count the same."""
        return True

    def scales(self) -> bool:
        """Return True: cosines stay."""
        return True
