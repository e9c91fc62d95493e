"""Pre-aggregation: inputs are mixed, averaged or cut before a robust rule sees them. And the default, which is composed of it."""

from __future__ import annotations

from math import ceil
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny

from gym_core.component import Slot
from gym_deltasoup.config.robust import Robust, TrimmedMean
from gym_deltasoup.kinds import Merger


class PreAggregation(Merger):
    """What holds of a rule behind a step that mixes inputs: what the rule says of itself."""

    rule: Annotated[SerializeAsAny[Merger], Slot("mergers")] = TrimmedMean()
    """What combines the mixed inputs."""

    def idempotent(self) -> bool:
        """Return what the rule says: mixtures of equal inputs are equal."""
        return self.rule.idempotent()

    def order_free(self) -> bool:
        """Return what the rule says: the mixtures are those of any order."""
        return self.rule.order_free()

    def translates(self) -> bool:
        """Return what the rule says: weights of a mixture sum to 1."""
        return self.rule.translates()

    def scales(self) -> bool:
        """Return what the rule says: only ratios of distances count."""
        return self.rule.scales()

    def tolerates(self, inputs: int) -> int:
        """Return what the rule says."""
        return self.rule.tolerates(inputs)

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return what the rule says: mixtures of inputs that agree agree."""
        return self.rule.bounded_by()


class NNM(PreAggregation):
    """Nearest-neighbour mixing: each input becomes the mean of the `n - f` nearest to it, itself included.

    Allouah et al. 2023, algorithm 2.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.nnm:NNMRule"


class Bucketing(PreAggregation):
    """Inputs are put into buckets at random, and each bucket becomes its mean (Karimireddy et al. 2022, algorithm 1).

    The rule sees `ceil(n / size)` inputs, of which as many may be hostile as before.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.bucketing:BucketingRule"

    size: Annotated[int, Field(ge=1)] = 2
    """Inputs of a bucket; the last one may have fewer."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides, with the names of the inputs, which of them share a bucket."""

    def translates(self) -> bool:
        """Return what the rule says: each bucket moves as its inputs do."""
        return self.rule.translates()

    def tolerates(self, inputs: int) -> int:
        """Return what the rule says of as many inputs as there are buckets."""
        return self.rule.tolerates(ceil(inputs / self.size))


class ARC(PreAggregation):
    """Adaptive robust clipping: the `floor(2 (f/n) (n - f))` largest changes are cut to the norm of the next.

    Allouah et al. 2024, algorithm 2.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.arc:ARCRule"
    needs_base: ClassVar[bool] = True

    def translates(self) -> bool:
        """Return False: norms count."""
        return False


class ByzantineRobust(Robust):
    """The default: norms are cut, copies counted once, near inputs mixed (NNM), and the rest of the hostile values trimmed away.

    Changes longer than `norm_cap` times the median norm are cut to that, and near copies become one, their mean; each then is
    replaced by the mean of the `n - f` nearest to it, and of each coordinate the `f` largest and smallest are left out (NNM and
    CWTM, Allouah et al. 2023). With `f = 0` it is the mean of changes that are cut, and tolerates nobody.

    Mixing alone takes all copies of an input into each mixture, so that `f` of them move the result further than they move the
    mean. `f` stays as it was where copies become one, as it is not known whose they are: the bounds then hold of the inputs that
    are left. Where these are no more than `2 f`, copies stay.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.byzantine_robust:ByzantineRobustRule"
    needs_base: ClassVar[bool] = True

    norm_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest norm of a change, in medians of the norms."""
    copy_radius: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Largest distance of near copies, in medians of the distances between changes."""

    def translates(self) -> bool:
        """Return False: norms count."""
        return False

    def under_privacy(self) -> Merger:
        """Return the trimmed mean: who is near to whom, and the median norm, change by steps when one input changes."""
        return TrimmedMean()
