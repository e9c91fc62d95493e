"""Merges that stay near the honest inputs whatever the hostile ones hold."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_deltasoup.config.equivariant import Equivariant


class Robust(Equivariant):
    """What holds of most robust rules: fewer than half of the inputs may be hostile."""

    def tolerates(self, inputs: int) -> int:
        """Return the largest f with n > 2f."""
        return max(0, (inputs - 1) // 2)


class Krum(Robust):
    """The input that is nearest to its `n - f - 2` nearest others, by the sum of squared distances (Blanchard et al. 2017).

    It returns one input as it is, so nothing of the noise of that one is averaged away. Needs `n >= 2f + 3`.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.krum:KrumRule"
    least_inputs: ClassVar[int] = 1

    def tolerates(self, inputs: int) -> int:
        """Return the largest f with n >= 2f + 3."""
        return max(0, (inputs - 3) // 2)


class MultiKrum(Krum):
    """The mean of the `m` inputs with the best scores of Krum (Blanchard et al. 2017, section 4)."""

    target: ClassVar[str] = "gym_deltasoup.robust.multi_krum:MultiKrumRule"

    selected: PositiveInt | None = None
    """How many inputs `m` are averaged; by default `n - f`."""


class Bulyan(Robust):
    """Krum picks `n - 2f` inputs one by one; of each coordinate the `n - 4f` values nearest to their median are averaged.

    El Mhamdi et al. 2018, section 4. Needs `n >= 4f + 3`.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.bulyan:BulyanRule"

    def tolerates(self, inputs: int) -> int:
        """Return the largest f with n >= 4f + 3."""
        return max(0, (inputs - 3) // 4)


class TrimmedMean(Robust):
    """Of each coordinate the mean without the `f` largest and the `f` smallest values (Yin et al. 2018, definition 2)."""

    target: ClassVar[str] = "gym_deltasoup.robust.trimmed_mean:TrimmedMeanRule"

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return `2 clip / (n - 2f)`: its derivatives are 0 or `1 / (n - 2f)`, and of one input each moves one value."""
        return 2 * clip / (inputs - 2 * hostile)


class Median(Robust):
    """The median of each coordinate; of an even number of inputs the mean of the middle two (Yin et al. 2018, definition 1)."""

    target: ClassVar[str] = "gym_deltasoup.robust.median:MedianRule"


class MeaMed(Robust):
    """Of each coordinate the mean of the `n - f` values that are nearest to the median (Xie et al. 2018, definition 7)."""

    target: ClassVar[str] = "gym_deltasoup.robust.meamed:MeaMedRule"


class GeometricMedian(Robust):
    """The point with the least sum of distances to the inputs, by the smoothed Weiszfeld algorithm (Pillutla et al. 2022).

    `z <- sum_i w_i x_i / sum_i w_i`, with `w_i = 1 / max(nu, |x_i - z|)`.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.geometric_median:GeometricMedianRule"

    nu: Annotated[float, Field(gt=0, le=0.1)] = 1e-6
    """Least distance that counts, as a share of the least distance within which one input has half of all."""
    max_iterations: PositiveInt = 2000
    """Most steps; it ends before when nothing moves any more."""


class CenteredClipping(Robust):
    """Steps from a centre towards the inputs, each cut to a radius: `v <- v + mean_i clip(x_i - v, tau)`.

    Karimireddy et al. 2021, equation 7.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.centered_clipping:CenteredClippingRule"

    start: Literal["geometric_median", "base"] = "geometric_median"
    """The first centre: the geometric median, or the base, that is a change of zero."""
    tau: PositiveFloat | None = None
    """Radius; by default the median distance of the inputs to the centre, in each step anew."""
    iterations: PositiveInt = 5
    """Steps."""

    def translates(self) -> bool:
        """Return whether it does not begin at the base."""
        return self.start != "base"

    def scales(self) -> bool:
        """Return whether the radius follows the inputs."""
        return self.tau is None

    def idempotent(self) -> bool:
        """Return whether it begins at the inputs, or reaches them in a step."""
        return self.start != "base" or self.tau is None

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return `spread` where it begins at the inputs and the radius is theirs; else the base or the radius is in each step."""
        return "spread" if self.start != "base" and self.tau is None else "norm"

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return that of a mean, for one step with a radius of its own from the base; else the centre depends on all."""
        if self.start != "base" or self.tau is None or self.iterations != 1:
            return None
        return 2 * min(clip, self.tau) / inputs


class NormBound(Robust):
    """The mean of changes that are cut to a norm: `mean_i x_i min(1, C / |x_i|)` (Sun et al. 2019).

    `f` hostile inputs of `n` move it by `2 f C / n` at most, but always by some.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.norm_bound:NormBoundRule"
    needs_base: ClassVar[bool] = True

    bound: PositiveFloat | None = None
    """The norm `C`; by default the median of the norms."""

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return that a norm bounds it: even where honest changes agree, hostile ones move it."""
        return "norm"

    def translates(self) -> bool:
        """Return False: norms count."""
        return False

    def scales(self) -> bool:
        """Return whether the bound follows the inputs."""
        return self.bound is None

    def idempotent(self) -> bool:
        """Return whether equal inputs are within the bound."""
        return self.bound is None

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return that of a mean, where the bound does not follow the inputs."""
        return None if self.bound is None else 2 * min(clip, self.bound) / inputs


class FLTrust(Robust):
    """Changes count by how far they point the way of a trusted one, and are brought to its norm.

    `sum_i w_i |x_0| x_i / |x_i| / sum_i w_i`, with `w_i = max(0, cos(x_i, x_0))`; zero where nobody points that way. The trusted
    `x_0` is named with the inputs and is not among those that are averaged (Cao et al. 2021, equations 2 to 4).
    """

    target: ClassVar[str] = "gym_deltasoup.robust.fltrust:FLTrustRule"
    least_inputs: ClassVar[int] = 2
    needs_base: ClassVar[bool] = True
    needs_trusted: ClassVar[bool] = True

    def translates(self) -> bool:
        """Return False: angles count."""
        return False

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return that a norm bounds it, the trusted one's: who points half that way counts half."""
        return "norm"

    def tolerates(self, inputs: int) -> int:
        """Return all but the trusted one."""
        return max(0, inputs - 1)


class SignMajority(Robust):
    """For changes of one bit a number: the sign that most inputs have, times the median of their scales (Bernstein et al. 2019).

    `median_i(s_i) sign(sum_i sign(x_i))` in each tensor, with `s_i = mean |x_i|` there. Where signs are even it is 0. The sign
    that more than half of all inputs have stays, and no tensor becomes longer than the longest honest one, whatever the others
    hold; but of a number that honest inputs leave as it was one hostile vote decides.
    """

    target: ClassVar[str] = "gym_deltasoup.robust.sign_majority:SignMajorityRule"
    needs_base: ClassVar[bool] = True

    def idempotent(self) -> bool:
        """Return False: what is no sign times a scale becomes one."""
        return False

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return that a norm bounds it, the longest honest one's: a zero has no vote."""
        return "norm"

    def translates(self) -> bool:
        """Return False: signs count."""
        return False
