"""The `train` section: what every training loop needs to know, whatever the algorithm and the backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from gym_core.component import Config, Flat


def _warmup_steps(value: float) -> float | None:
    """LLaMA-Factory writes 0 for `not set`."""
    return float(value) or None


class Train(Config):
    """How long to train, on how much at a time, and what to write down on the way."""

    epochs: Annotated[float, Field(gt=0), Flat("num_train_epochs", default=3.0)] = 1.0
    """Passes over the data; may be a fraction."""
    max_steps: Annotated[
        PositiveInt | None, Flat("max_steps", convert=lambda steps: steps if int(steps) > 0 else None)
    ] = None
    """Optimizer steps after which to stop, whatever `epochs` says."""
    batch_size: Annotated[PositiveInt, Flat("per_device_train_batch_size", default=8)] = 8
    """Sequences in one forward pass of one process."""
    batch_tokens: PositiveInt | Literal["auto"] | None = None
    """Tokens in one forward pass of one process, padding included; replaces `batch_size`. `auto`: as many as fit."""
    accumulate: Annotated[PositiveInt, Flat("gradient_accumulation_steps")] = 1
    """Forward passes in one optimizer step, over all processes together: a step is the same however many work on it."""
    learning_rate: Annotated[float, Field(ge=0), Flat("learning_rate", convert=float)] = 5e-5
    """Peak learning rate."""
    warmup: Annotated[
        float, Field(ge=0), Flat("warmup_ratio", convert=_warmup_steps), Flat("warmup_steps", _warmup_steps)
    ] = 0.0
    """Warm-up: a share of all steps when below 1, else a number of steps."""
    max_grad_norm: Annotated[float, Field(ge=0), Flat("max_grad_norm")] = 1.0
    """Largest L2 norm of the gradient over all trained parameters; 0 does not clip."""
    precision: Annotated[
        Literal["auto", "fp32", "bf16"],
        Flat("bf16", convert={True: "bf16", False: None}),
        Flat("pure_bf16", {False: None}),
    ] = "auto"
    """Arithmetic of the forward and backward pass; `auto` probes this machine. Trained weights stay fp32."""
    gradient_checkpointing: Annotated[
        bool | PositiveInt | Literal["selective", "auto"],
        Flat("gradient_checkpointing"),
        Flat("disable_gradient_checkpointing", convert={True: False, False: True}),
    ] = False
    """Layers that compute their activations again in the backward pass: every one, or each so many-th; `selective`: every one,
    but for its matrix products and attention; `auto`: as little of that as lets the run fit. No number of the run changes."""
    seed: Annotated[int, Field(ge=0), Flat("seed", default=42)] = 0
    """Seed of everything random: weights, sample order, dropout."""
    shuffle: Annotated[bool, Flat("disable_shuffling", convert={True: False, False: True})] = True
    """Whether samples come in a random order, another one each epoch."""
    log_every: Annotated[PositiveInt, Flat("logging_steps", default=500)] = 10
    """Optimizer steps between two lines of `metrics.jsonl`."""
    eval_every: Annotated[PositiveInt | None, Flat("eval_steps")] = None
    """Optimizer steps between two evaluations on the validation split; without it, once at the end."""
    save_every: Annotated[PositiveInt, Flat("save_steps", default=500)] = 500
    """Optimizer steps between two checkpoints."""
    keep_last: Annotated[PositiveInt, Flat("save_total_limit")] = 2
    """Checkpoints kept; an older one goes only after the newest was verified."""
    keep_best: bool = False
    """Whether to write and keep a checkpoint at the best evaluation too; needs `eval_every` and a validation split."""
    load_best_model_at_end: Annotated[bool, Flat("load_best_model_at_end")] = False
    """Whether `output/model` is that of the best evaluation, not of the last step; includes `keep_best`."""
    skip_steps: tuple[PositiveInt, ...] = ()
    """Steps that update nothing, counted from 1; may be set when a run goes on, for steps not yet taken."""
    plot: Annotated[bool, Flat("plot_loss")] = True
    """Whether to draw the loss to `loss.png`, and what else the algorithm improves, such as `reward.png`."""
    overwrite: Annotated[bool, Flat("overwrite_output_dir")] = False
    """Whether a finished or different run in the output directory may be set aside; an unfinished same run is resumed."""

    @property
    def keeps_best(self) -> bool:
        """Whether the checkpoint of the best evaluation is kept."""
        return self.keep_best or self.load_best_model_at_end

    @model_validator(mode="after")
    def _one_size(self) -> Train:
        if self.batch_tokens is not None and "batch_size" in self.model_fields_set:
            raise ValueError("set batch_size or batch_tokens, not both")
        return self
