"""The kind `mergers`: what combines the work of many, and what it promises of the result. No torch is imported here."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_core import GymError
from gym_optim.promises import Held


class Merger(Held):
    """Combines what several people trained. `build()` returns a `gym_deltasoup.merging.rule.MergeRule`.

    A rule sees a vector for each input: what it changed in a base, or its weights themselves where no base is named. Numbers that
    are not finite never reach it. How many inputs may be hostile is an argument of each merge, not an option.
    """

    kind: ClassVar[str] = "mergers"
    least_inputs: ClassVar[int] = 1
    """Inputs without which there is nothing to combine."""
    most_inputs: ClassVar[int | None] = None
    """Inputs beyond which it is not defined; None where it takes any number."""
    needs_base: ClassVar[bool] = False
    """Whether vectors must be changes of a base: it treats zero as the model that nobody trained."""
    needs_evaluation: ClassVar[bool] = False
    """Whether it asks how good a candidate is, higher being better: a function must then be given."""
    needs_trusted: ClassVar[bool] = False
    """Whether one input must be named that is known to be honest, such as an update on data of the server's own."""

    def takes_weights(self) -> bool:
        """Return whether inputs may have weights; with any other merger they are refused."""
        return False

    def takes_densities(self) -> bool:
        """Return whether inputs may each say which share of its numbers stays; with any other merger that is refused."""
        return False

    def idempotent(self) -> bool:
        """Return whether the merge of equal inputs, or of one, is that input."""
        return False

    def order_free(self) -> bool:
        """Return whether the order of the inputs changes nothing but rounding."""
        return False

    def translates(self) -> bool:
        """Return whether a vector added to all inputs is added to the result."""
        return False

    def scales(self) -> bool:
        """Return whether inputs times a positive number give the result times that number."""
        return False

    def tolerates(self, inputs: int) -> int:
        """Return how many of so many inputs may be hostile, with the result still bounded by the honest ones (`bounded_by`)."""
        return 0

    def bounded_by(self) -> Literal["spread", "norm"]:
        """Return what bounds how far the hostile inputs that it tolerates can move it.

        The `spread` of the honest ones: where all agree, nothing moves. Or a `norm`: theirs, or one that an option states.
        """
        return "spread"

    def sensitivity(self, inputs: int, hostile: int, clip: float) -> float | None:
        """Return how far the result moves at most when one input of a norm up to `clip` becomes another: an L2 distance.

        None where no bound is known that shrinks as inputs become more: then noise on the result makes nothing private.
        """
        return None

    def under_privacy(self) -> Merger:
        """Return what takes its place where the result shall be private: itself, or the nearest that has a `sensitivity`."""
        return self

    def is_random(self) -> bool:
        """Return whether it draws what no option repeats, so that the same inputs give another result each time."""
        return False

    def counts_broken(self) -> bool:
        """Return whether inputs that hold no finite numbers take part as zero; with other mergers they take no part."""
        return False

    def hides_inputs(self) -> bool:
        """Return whether nobody may see what one input holds: reports then have no hash of it, nor what is wrong with it."""
        return False

    def forecast(self, inputs: int, hostile: int, size: int) -> tuple[str, ...]:
        """Return what has to be said before so many inputs of `size` numbers are merged."""
        return ()


def name_of(merger: Merger) -> str:
    """Return what messages call a merger: the name of its entry point, or of its class where it has none."""
    from gym_core.discovery import entries

    cls = type(merger)
    return next(
        (entry.name for entry in entries("mergers") if entry.value == f"{cls.__module__}:{cls.__qualname__}"),
        cls.__name__,
    )


def require(merger: Merger, inputs: int, hostile: int) -> None:
    """Raise GymError where a merger cannot take so many inputs, or cannot tolerate so many hostile ones among them."""
    least, most = merger.least_inputs, merger.most_inputs
    if inputs < least or (most is not None and inputs > most):
        needed = f"exactly {least}" if least == most else f"at least {least}" if inputs < least else f"at most {most}"
        raise GymError(f"{name_of(merger)} needs {needed} inputs, and there are {inputs}", key="inputs")
    if hostile < 0:
        raise GymError(f"there cannot be {hostile} hostile inputs", key="hostile", fix="give 0 or more")
    if hostile > 0 and hostile > merger.tolerates(inputs):
        enough = next((n for n in range(inputs, 20 * hostile + 20) if merger.tolerates(n) >= hostile), None)
        if enough is None:
            raise GymError(
                f"{name_of(merger)} tolerates no hostile input, and {hostile} are expected",
                key="hostile",
                fix="use byzantine_robust, or another robust merger",
            )
        raise GymError(
            f"{name_of(merger)} needs at least {enough} inputs to tolerate {hostile} hostile ones, and there are {inputs}",
            key="hostile",
            fix=f"get more contributions, or expect at most {merger.tolerates(inputs)} hostile ones",
        )
