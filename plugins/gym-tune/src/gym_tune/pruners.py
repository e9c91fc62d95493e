"""Options of the pruners, in the terms of Optuna; every step is an optimizer step. No torch is imported here."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from gym_tune.kinds import Pruner

Count = Annotated[int, Field(ge=0)]
Factor = Annotated[int, Field(ge=2)]


class OptunaPruner(Pruner):
    """Base of the pruners that are Optuna's own."""

    target: ClassVar[str] = "gym_tune.optuna_parts:build_pruner"
    of: ClassVar[str]
    """`module:class` of Optuna."""

    def options(self) -> dict[str, Any]:
        """Return the options as Optuna takes them."""
        return self.model_dump()


class Never(OptunaPruner):
    """No trial is ended early."""

    of: ClassVar[str] = "optuna.pruners:NopPruner"
    prunes: ClassVar[bool] = False


class Median(OptunaPruner):
    """Ends a trial whose best value so far is worse than the median of the others at the same step. Optuna's default."""

    of: ClassVar[str] = "optuna.pruners:MedianPruner"

    n_startup_trials: Count = 5
    """Trials that must have come to their end before any is ended early."""
    n_warmup_steps: Count = 0
    """Steps before which no trial is ended."""
    interval_steps: PositiveInt = 1
    """Steps between two decisions."""
    n_min_trials: PositiveInt = 1
    """Trials that must have a value at this step."""


class Percentile(Median):
    """Ends a trial whose best value so far is not among the best `percentile` percent at the same step."""

    of: ClassVar[str] = "optuna.pruners:PercentilePruner"

    percentile: Annotated[float, Field(ge=0, le=100)] = 25.0
    """Percent of the trials that go on."""


class SuccessiveHalving(OptunaPruner):
    """ASHA: at steps that grow by a factor, only the best share goes on (`SuccessiveHalvingPruner` in Optuna)."""

    of: ClassVar[str] = "optuna.pruners:SuccessiveHalvingPruner"

    min_resource: PositiveInt | Literal["auto"] = "auto"
    """Steps of the first decision; `auto`: a hundredth of the steps of the first trial."""
    reduction_factor: Factor = 4
    """One in so many goes on, for so many times the steps."""
    min_early_stopping_rate: Count = 0
    """How many of the first decisions are left out."""
    bootstrap_count: Count = 0
    """Trials that must have reached a decision before one is made there; not with `min_resource: auto`."""

    @model_validator(mode="after")
    def _fits_together(self) -> SuccessiveHalving:
        if self.bootstrap_count and self.min_resource == "auto":
            raise ValueError("bootstrap_count needs a number as min_resource")
        return self


class Hyperband(OptunaPruner):
    """Several ASHA side by side that begin to decide at different steps; for many trials, of which each has a share."""

    of: ClassVar[str] = "optuna.pruners:HyperbandPruner"

    min_resource: PositiveInt = 1
    """Steps of the first decision of the strictest; set it to those of the first evaluation (`train.eval_every`)."""
    max_resource: PositiveInt | Literal["auto"] = "auto"
    """Steps of a whole trial; `auto`: of the first one that came to its end."""
    reduction_factor: Factor = 3
    """One in so many goes on, for so many times the steps."""
    bootstrap_count: Count = 0
    """Trials that must have reached a decision before one is made there; not with `max_resource: auto`."""

    @model_validator(mode="after")
    def _fits_together(self) -> Hyperband:
        if self.bootstrap_count and self.max_resource == "auto":
            raise ValueError("bootstrap_count needs a number as max_resource")
        return self
