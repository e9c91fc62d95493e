"""Merges that keep a part of each change, so that changes of several tasks do not stand in each other's way."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, SerializeAsAny, model_validator

from gym_core.component import Slot
from gym_deltasoup.config.dense import Scope, TaskArithmetic
from gym_deltasoup.kinds import Merger

Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class TIES(Merger):
    """Trim, elect a sign, and average those who agree with it (Yadav et al. 2023, algorithm 1).

    Of each change the largest numbers stay. The sign of a coordinate is that of the sum of what stayed; the result is the mean of
    what stayed and has that sign, times `scale`. Sum and mean have the weights of the inputs.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.ties:TIESRule"
    needs_base: ClassVar[bool] = True

    density: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the numbers of a change that stay, the largest in magnitude. An input may have a `density` of its own."""
    scale: float = Field(default=1.0, allow_inf_nan=False)
    """What the merged change is multiplied by. `lambda` in mergekit."""
    normalize: bool = True
    """Whether those who agree are averaged, as published; without it they are added up, and weights may be negative."""
    scope: Scope = "model"
    """Where the largest are looked for: in the whole change, as published, or in each tensor."""

    def takes_weights(self) -> bool:
        """Return True."""
        return True

    def takes_densities(self) -> bool:
        """Return True."""
        return True

    def order_free(self) -> bool:
        """Return True: sums and counts have no order."""
        return True

    def scales(self) -> bool:
        """Return True: magnitudes keep their order, and signs stay."""
        return True


class SCE(Merger):
    """Select, calculate, erase: where changes differ most, they are weighed by their squares (Wan et al. 2024, section 3.2).

    Numbers with the largest variance among the inputs stay. The weight of an input is its share of the sum of all squares that
    stayed. Of each number those count whose sign is that of the sum of all, and the result is their mean.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.sce:SCERule"
    least_inputs: ClassVar[int] = 2
    needs_base: ClassVar[bool] = True

    density: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the numbers that differ at all that stays. `select_topk` in mergekit."""
    scope: Scope = "tensor"
    """Where numbers are chosen and weights computed: in each tensor, as published, or in the whole change."""

    def idempotent(self) -> bool:
        """Return whether all numbers stay: of equal changes none differs from another."""
        return self.density == 1

    def order_free(self) -> bool:
        """Return True: variances and sums have no order."""
        return True

    def scales(self) -> bool:
        """Return True: variances keep their order, and shares stay."""
        return True


class Sparsified(Merger):
    """What holds of a merge that first drops parts of each change."""

    needs_base: ClassVar[bool] = True

    rule: Annotated[SerializeAsAny[Merger], Slot("mergers")] = TaskArithmetic()
    """What combines the changes that are left."""

    def takes_weights(self) -> bool:
        """Return what the rule says."""
        return self.rule.takes_weights()

    def takes_densities(self) -> bool:
        """Return True: of each change another share may be left. The rule is told nothing of it."""
        return True

    def scales(self) -> bool:
        """Return what the rule says: which numbers are dropped does not depend on the unit."""
        return self.rule.scales()


class Drawn(Sparsified):
    """What holds of a merge that drops numbers at random."""

    rescale: bool = True
    """Whether the others are enlarged, so that each change keeps its mean."""
    seed: Seed = 0
    """What is drawn follows from this, from the name of the input and from the place of the number."""


class DARE(Drawn):
    """Numbers of each change are dropped at random, and the others enlarged: `m_i x_i / (1 - p)`.

    Yu et al. 2023, section 3.2.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.dare:DARERule"

    drop_rate: Share = 0.9
    """Probability `p` of a number to be dropped. For an input with a `density` of its own it is one minus that."""


class DELLA(Drawn):
    """As DARE, but small numbers of a row are dropped more often (Deep et al. 2024, section 3.1), then TIES without trimming.

    The number with rank `r` of `n` in its row, 0 the smallest, is dropped with `p + epsilon/2 - epsilon r/(n-1)` and else divided
    by one minus that.
    """

    target: ClassVar[str] = "gym_deltasoup.merging.della:DELLARule"

    rule: Annotated[SerializeAsAny[Merger], Slot("mergers")] = TIES(density=1.0)
    """What combines the changes that are left."""
    drop_rate: Share = 0.7
    """Mean probability `p` of a number to be dropped. For an input with a `density` of its own it is one minus that."""
    epsilon: Share = 0.2
    """Difference of the probabilities of the smallest and of the largest number of a row."""

    @model_validator(mode="after")
    def _probabilities(self) -> Self:
        if not self.epsilon / 2 <= self.drop_rate < 1 - self.epsilon / 2:
            raise ValueError("drop_rate plus and minus half of epsilon must stay within 0 and 1")
        return self


class Breadcrumbs(Sparsified):
    """The largest and the smallest numbers of each tensor's change are dropped (Davari and Belilovsky 2023, section 3)."""

    target: ClassVar[str] = "gym_deltasoup.merging.breadcrumbs:BreadcrumbsRule"

    top: Share = 0.01
    """Share of the numbers that is dropped because they are outliers, the largest in magnitude; fewer where an input has a
    `density` that leaves fewer to drop. `gamma` in mergekit."""
    bottom: Share = 0.85
    """Share of the numbers that is dropped because they are small. For an input with a `density` of its own it is what that and
    `top` leave."""
    scope: Scope = "tensor"
    """Where they are looked for: in each tensor, as published, or in the whole change."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Self:
        if self.top + self.bottom >= 1:
            raise ValueError("top and bottom together leave nothing")
        return self

    def order_free(self) -> bool:
        """Return what the rule says: each change is cut on its own."""
        return self.rule.order_free()
