"""A merge that tells little of any one input. No torch is imported here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, SerializeAsAny

from gym_core import GymError
from gym_core.component import Slot
from gym_deltasoup.config.robust import TrimmedMean
from gym_deltasoup.kinds import Merger, name_of


class DifferentialPrivacy(Merger):
    """Changes are cut to a norm, combined by a rule that no one of them moves far, and noised: the Gaussian mechanism.

    Whoever sees the result can hardly tell whether one input was another one: `(epsilon, delta)`-differential privacy, with
    neighbours that differ in what one of the `n` inputs holds (Dwork et al. 2006; noise after Balle and Wang 2018). An input that
    holds no finite numbers counts as no change, so that `n` stays. With one input it is local privacy, for its
    contributor alone. Names, layers, number formats and ranks are not hidden.
    """

    target: ClassVar[str] = "gym_deltasoup.privacy.private_merge:DifferentialPrivacyRule"
    needs_base: ClassVar[bool] = True

    rule: Annotated[SerializeAsAny[Merger], Slot("mergers")] = TrimmedMean()
    """What combines the changes. Where no bound holds of how far one of them moves it, it is refused; `byzantine_robust` becomes
    `trimmed_mean`, without mixing."""
    clip: PositiveFloat = 1.0
    """Norm that changes are cut to. It has to be fixed before anybody looks at them."""
    epsilon: PositiveFloat = 1.0
    """Epsilon of the result."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Delta of the result: far below one in the number of inputs."""

    def tolerates(self, inputs: int) -> int:
        """Return what the rule says."""
        return self.private_rule().tolerates(inputs)

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return that a norm bounds it: the one that changes are cut to."""
        return "norm"

    def is_random(self) -> bool:
        """Return True: nobody can draw the noise again."""
        return True

    def counts_broken(self) -> bool:
        """Return True: they count as no change."""
        return True

    def hides_inputs(self) -> bool:
        """Return True: whoever holds two candidates would tell by a hash which of them was merged."""
        return True

    def private_rule(self) -> Merger:
        """Return what combines the changes."""
        return self.rule.under_privacy()

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return None: noise on noise is not what it is for."""
        return None

    def moved_by(self, inputs: int, hostile: int) -> float:
        """Return how far one input can move the result: its L2 sensitivity. Raises GymError where no bound is known."""
        rule = self.private_rule()
        found = rule.sensitivity(inputs, hostile, self.clip)
        if found is None:
            raise GymError(
                f"no bound is known of how far one input moves {name_of(rule)}, so no noise makes it private",
                key="merger.rule",
                fix="use trimmed_mean or uniform_soup, or let each contributor add noise (local privacy)",
            )
        return found

    def sigma(self, inputs: int, hostile: int) -> float:
        """Return the standard deviation of the noise on each coordinate."""
        from gym_deltasoup.gaussian_mechanism import sigma_of

        return sigma_of(self.epsilon, self.delta, self.moved_by(inputs, hostile))

    def forecast(self, inputs: int, hostile: int, size: int) -> tuple[str, ...]:
        """Return how much noise there will be, beside the longest change that there can be."""
        ratio = self.sigma(inputs, hostile) * size**0.5 / self.clip
        rule = name_of(self.private_rule())
        told = f"noise is {ratio:.3g} times the longest change that can come out ({rule} of {inputs}, {size:,} numbers)"
        if ratio < 1:
            return (told,)
        return (
            told,
            "little will be left of what was learned: get more inputs, allow a larger epsilon, or train fewer weights",
        )
