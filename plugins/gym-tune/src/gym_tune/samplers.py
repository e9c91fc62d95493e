"""Options of the samplers, in the terms of Optuna. No torch is imported here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_core import PluginError
from gym_tune.kinds import Sampler


class OptunaSampler(Sampler):
    """Base of the samplers that are Optuna's own."""

    target: ClassVar[str] = "gym_tune.optuna_parts:build_sampler"
    of: ClassVar[str]
    """`module:class` of Optuna."""
    one_sequence: ClassVar[bool] = False
    """Whether all trials are points of one sequence, which has one seed."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that it needs beyond what Optuna brings."""

    def options(self) -> dict[str, Any]:
        """Return the options as Optuna takes them."""
        return self.model_dump()

    def check(self) -> None:
        """Raise PluginError where a module is missing."""
        if lacking := [name for name in self.modules if find_spec(name) is None]:
            fix = f"pip install {' '.join(lacking)}, or take the sampler `tpe`"
            raise PluginError(f"this sampler needs {' and '.join(lacking)}", key="sampler", fix=fix)


class TPE(OptunaSampler):
    """Tree-structured Parzen estimator: draws where good trials are dense and bad ones are not. What Optuna takes by default."""

    of: ClassVar[str] = "optuna.samplers:TPESampler"

    n_startup_trials: Annotated[int, Field(ge=0)] = 10
    """Trials that are drawn at random before it learns from them."""
    n_ei_candidates: PositiveInt = 24
    """Candidates of which the best is taken."""
    multivariate: bool = False
    """Whether keys are drawn together, which sees how they depend on each other."""


class Random(OptunaSampler):
    """Every trial is drawn by itself."""

    of: ClassVar[str] = "optuna.samplers:RandomSampler"


class Grid(OptunaSampler):
    """Every point of the space once, in a random order (`BruteForceSampler` in Optuna). Real ranges need a `step`."""

    of: ClassVar[str] = "optuna.samplers:BruteForceSampler"
    finite: ClassVar[bool] = True


class QMC(OptunaSampler):
    """Points that are spread evenly (quasi-Monte Carlo). Needs SciPy. Choices from a list are drawn at random."""

    of: ClassVar[str] = "optuna.samplers:QMCSampler"
    one_sequence: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = ("scipy",)

    qmc_type: Literal["sobol", "halton"] = "sobol"
    """The sequence."""
    scramble: bool = True
    """Whether the sequence is shifted at random; without it the first point is the corner where all is lowest."""

    def options(self) -> dict[str, Any]:
        """Return the options as Optuna takes them; that some keys are drawn apart is no news."""
        return super().options() | {"warn_independent_sampling": False}


class GP(OptunaSampler):
    """Gaussian process with expected improvement, for few and expensive trials. Needs torch and SciPy."""

    of: ClassVar[str] = "optuna.samplers:GPSampler"
    modules: ClassVar[tuple[str, ...]] = ("scipy", "torch")

    n_startup_trials: Annotated[int, Field(ge=0)] = 10
    """Trials that are drawn at random before it learns from them."""

    def options(self) -> dict[str, Any]:
        """Return the options as Optuna takes them; that some keys are drawn apart is no news."""
        return super().options() | {"warn_independent_sampling": False}
