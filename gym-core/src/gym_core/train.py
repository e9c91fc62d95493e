"""The `train` section: what every training loop needs to know, whatever the algorithm and the backend."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from gym_core.component import Config

Count = Annotated[int, Field(gt=0, lt=2**31)]


class Scaling(Config):
    """How the loss is scaled where a run computes in fp16, whose small gradients would be 0 otherwise."""

    init_scale: Annotated[float, Field(ge=1, lt=2.0**127)] = 65536.0
    """What the loss is multiplied by at first (2 to the `initial_scale_power` in DeepSpeed)."""
    growth_interval: PositiveInt = 2000
    """Steps with finite gradients after which the scale is doubled (`loss_scale_window` in DeepSpeed)."""
    hysteresis: PositiveInt = 1
    """Steps with gradients that are not finite until the scale is halved; such a step updates nothing in any case."""
    min_loss_scale: Annotated[float, Field(gt=0)] = 1.0
    """Smallest scale: where gradients are not finite even so, the run ends with the samples that do it."""

    @model_validator(mode="after")
    def _begins_above(self) -> Scaling:
        if self.init_scale < self.min_loss_scale:
            raise ValueError(f"init_scale is below min_loss_scale, {self.min_loss_scale:g}")
        return self


class LossSpike(Config):
    """When the loss or gradient norm of a step stands out so far from those before it that it must not move the weights."""

    window: Annotated[int, Field(ge=4, le=100_000)] = 128
    """Steps taken before it that a step is compared with, from half as many on (`rolling_interval_length` in OLMo-core)."""
    threshold: Annotated[float, Field(gt=0)] = 6.0
    """Standard deviations above the mean from which on loss or gradient norm are a spike (`sigma_factor` in OLMo-core)."""
    action: Literal["skip", "stop"] = "skip"
    """`skip`: it updates nothing, nor does a step that is not finite, and the run goes on; `stop`: the run ends with a report."""
    patience: PositiveInt = 8
    """Steps skipped in a row after which the next one ends the run: then it is not the samples."""


class Train(Config):
    """How long to train, on how much at a time, and what to write down on the way."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        ["plot", "overwrite", "save_every", "keep_last", "keep_best", "load_best_model_at_end", "skip_steps"]
    )

    epochs: Annotated[float, Field(gt=0)] = 1.0
    """Passes over the data; may be a fraction (`num_train_epochs` in transformers)."""
    max_steps: PositiveInt | None = None
    """Optimizer steps after which to stop, whatever `epochs` says."""
    batch_size: Count = 8
    """Sequences in one forward pass of one process (`per_device_train_batch_size` in transformers)."""
    batch_tokens: Count | Literal["auto"] | None = None
    """Tokens in one forward pass of one process, padding included; replaces `batch_size`. `auto`: as many as fit."""
    accumulate: Count = 1
    """Forward passes in one optimizer step, of all processes together (`gradient_accumulation_steps` in transformers: of one)."""
    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """Peak learning rate (`lr` in torch)."""
    warmup: PositiveInt | Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Warm-up: a share of all steps below 1, rounded up; else so many steps (`warmup_ratio`, `warmup_steps` in transformers)."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """Largest L2 norm of the gradient over all trained parameters; 0 does not clip."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward and backward pass; `auto` probes this machine for bf16 or fp32. Trained weights stay fp32
    (`bf16`, `fp16` in transformers)."""
    loss_scale: Scaling = Scaling()
    """How the loss is scaled with `precision: fp16`, and there alone."""
    loss_spike: LossSpike | None = None
    """What to do with a step whose loss or gradient is a spike; `{}` for the defaults. Without it nothing is looked for."""
    gradient_checkpointing: bool | PositiveInt | Literal["selective", "tiled", "offload", "auto"] = False
    """Layers that compute activations again: every one, or each so many-th; `selective`: all but matrix products and attention;
    `tiled`: every one, in slices of the row; `offload`: those, inputs put on the disk or the host; `auto`: as little as fits."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything random: weights, sample order, dropout."""
    shuffle: bool = True
    """Whether samples come in a random order, another one each epoch."""
    log_every: PositiveInt | Annotated[float, Field(gt=0, lt=1)] = 10
    """Optimizer steps between two lines of `metrics.jsonl`; a share of all when below 1 (`logging_steps` in transformers)."""
    eval_every: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Optimizer steps between two evaluations, or a share of all; without it, one at the end (`eval_steps` in transformers)."""
    eval_on_start: bool = False
    """Whether to evaluate before the first step too, as step 0; it is never the best, and nothing stops for it."""
    save_every: PositiveInt | Annotated[float, Field(gt=0, lt=1)] = 500
    """Optimizer steps between two checkpoints; a share of all steps when below 1 (`save_steps` in transformers)."""
    keep_last: PositiveInt = 2
    """Checkpoints kept; an older one goes only after the newest was verified (`save_total_limit` in transformers)."""
    keep_best: bool = False
    """Whether to write and keep a checkpoint at the best evaluation too; needs `eval_every` and a validation split."""
    load_best_model_at_end: bool = False
    """Whether `output/model` is that of the best evaluation, not of the last step; includes `keep_best`."""
    metric_for_best_model: str | None = None
    """Metric of evaluations by which the best is told, for checkpoints and early stopping, such as `rewards/accuracies`, with or
    without `eval_`; by default what the algorithm improves."""
    greater_is_better: bool | None = None
    """Whether more of that metric is better; by default as the algorithm says of it."""
    skip_steps: tuple[PositiveInt, ...] = ()
    """Steps that update nothing, counted from 1; may be set when a run goes on, for steps not yet taken."""
    plot: bool = True
    """Whether to draw the loss to `loss.png`, and what else tells how it goes: `reward.png`, `rewards_accuracies.png`."""
    overwrite: bool = False
    """Whether a finished or different run in the output directory may be set aside; an unfinished same run is resumed."""

    @model_validator(mode="after")
    def _fits_together(self) -> Train:
        if self.batch_tokens is not None and "batch_size" in self.model_fields_set:
            raise ValueError("set batch_size or batch_tokens, not both")
        if self.precision != "fp16" and self.loss_scale != Scaling():
            raise ValueError("loss_scale is for fp16, in which small gradients are 0: set precision: fp16 too")
        if self.greater_is_better is not None and self.metric_for_best_model is None:
            raise ValueError("greater_is_better says of metric_for_best_model which way is better: set that too")
        return self
