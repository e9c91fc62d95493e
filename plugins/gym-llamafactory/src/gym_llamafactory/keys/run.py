"""How long and how is trained, on which processes, and what is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gym_dialect import Key
from gym_dialect.convert import NOT, note, number, positive, switched, unread
from gym_llamafactory.table import Keys

KEEP_ALL = 1_000_000  #: checkpoints; more than any run writes
_SAVED, EPOCHS = 500, 3.0  #: what `save_steps` and `num_train_epochs` mean by being left out
PPO_EPOCHS = 4  #: what `ppo_epochs` means by being left out
_ROUND = "stage ppo_epochs ppo_buffer_size"  #: what says how many optimizer steps a step of PPO has
_LOGGED = 500  #: what `logging_steps` means by being left out
_CHECKPOINTED = {"full": True, "selective": "selective"}  #: what Megatron computes again, as here


def counted(convert: Callable[..., float | None]) -> Callable[..., float | None]:
    """Return the same for a key that counts steps: with `stage: ppo` one is a round there, of several optimizer steps here."""

    def converted(
        value: Any, stage: Any = None, ppo_epochs: Any = None, ppo_buffer_size: Any = None, **more: Any
    ) -> float | None:
        found = convert(value, **more)
        if found is None or float(found) < 1 or str(stage).lower() != "ppo":
            return found
        return int(found) * int(ppo_epochs or PPO_EPOCHS) * int(ppo_buffer_size or 1)

    return converted


def evaluations(
    strategy: Any,
    eval_steps: Any = None,
    logging_steps: Any = None,
    num_train_epochs: Any = None,
    max_steps: Any = None,
) -> float | None:
    """Return the steps between two evaluations; None for the one at the end. Without `eval_steps` it is every logged step."""
    if strategy in (False, "no"):
        return None
    if strategy == "epoch":
        return epochly(num_train_epochs, max_steps)
    if strategy != "steps":
        raise ValueError(f"there is no `{strategy}`: one of no, steps, epoch")
    return whole(eval_steps or logging_steps or _LOGGED)


def checkpoints(strategy: Any, save_steps: Any = None, num_train_epochs: Any = None, max_steps: Any = None) -> float:
    """Return the steps between two checkpoints; the one at the end is always written."""
    if strategy in (False, "no"):
        return KEEP_ALL
    if strategy == "epoch":
        return epochly(num_train_epochs, max_steps) or KEEP_ALL
    if strategy != "steps":
        raise ValueError(f"there is no `{strategy}`: one of no, steps, epoch; `load_best_model_at_end` keeps the best")
    if save_steps is not None and float(save_steps) == 0:
        return KEEP_ALL
    return whole(_SAVED if save_steps is None else save_steps)


def epochly(num_train_epochs: Any, max_steps: Any) -> float | None:
    """Return an epoch as a share of all steps, of which each has as many; None where there is but one."""
    epochs = float(num_train_epochs or EPOCHS)
    if (max_steps and int(max_steps) > 0) or epochs != int(epochs):
        raise ValueError(
            "`epoch` is a share of all steps, so epochs must be whole and `max_steps` left out: set `steps`"
        )
    return 1 / epochs if epochs > 1 else None


def whole(steps: Any) -> float:
    """Take a number of steps, or a share of all below 1."""
    given = float(steps)
    if 0 < given < 1:
        return given
    if given < 1 or given != int(given):
        raise ValueError(f"give a whole number of steps, or a share of all below 1, not {steps}")
    return int(given)


def warmup(value: Any, lr_scheduler_type: Any = None, warmup_steps: Any = None) -> float | None:
    """Return the warm-up; None where the scheduler has none, or where `warmup_steps` says it."""
    constant = str(lr_scheduler_type).lower() == "constant"
    return None if constant or (warmup_steps and float(warmup_steps)) else number(value)


def warmup_ratio(value: Any, lr_scheduler_type: Any = None, warmup_steps: Any = None) -> float | None:
    """Return the warm-up as a share of all steps; from 1 on it would be a number of steps here."""
    if not 0 <= float(value) < 1:
        raise ValueError(
            f"is a share of all steps, from 0 and below 1, not {value}; `warmup_steps` is a number of them"
        )
    return warmup(value, lr_scheduler_type, warmup_steps)


def warmup_steps(value: Any, lr_scheduler_type: Any = None) -> float | None:
    """Return the warm-up; None where the scheduler has none."""
    return warmup(value, lr_scheduler_type)


def kept(limit: Any) -> int:
    """Return how many checkpoints are kept: all, unless there is a limit."""
    return int(limit) if int(limit) > 0 else KEEP_ALL


def pure(value: Any) -> str | None:
    """Take bf16 weights for bf16 arithmetic: weights that are trained stay fp32 here."""
    if not value:
        return None
    note("pure_bf16: computed in bf16, and trained weights stay fp32: more memory than there, and less is rounded away")
    return "bf16"


def clipped(
    norm: Any,
    use_galore: Any = None,
    galore_layerwise: Any = None,
    use_apollo: Any = None,
    apollo_layerwise: Any = None,
    optim: Any = None,
) -> Any:
    """Return the largest norm of gradients; 0 where each is used up before the others are there, so that none is clipped."""
    at_once = (use_galore and galore_layerwise) or (use_apollo and apollo_layerwise)
    return 0.0 if at_once or str(optim).endswith("_layerwise") else norm


def training(value: Any) -> None:
    """Take what `gym train` is asked for."""
    if value is False:
        raise ValueError("asks for no training: set it to true")


def beside_training(command: str, done: str) -> Callable[..., None]:
    """Return a conversion for a switch that LLaMA-Factory follows with `do_train` or alone; alone it is no file for training."""

    def said(value: Any, do_train: Any = None) -> None:
        if value and not do_train:
            raise ValueError(f"alone it trains nothing: set `do_train: true`, or {command}")
        if value and done:
            note(done)

    return said


def half(value: Any, pure_bf16: Any = None, fp16: Any = None) -> str | None:
    """Return the precision; None where `pure_bf16` or `fp16` says it, which go with no other."""
    if switched(value) and (pure_bf16 or fp16):
        raise ValueError(f"is one precision, and `{'pure_bf16' if pure_bf16 else 'fp16'}` another: give one")
    return None if pure_bf16 or fp16 else "bf16" if value else "fp32"


def scaled_half(value: Any, pure_bf16: Any = None) -> str | None:
    """Return the precision where it is fp16."""
    if switched(value) and pure_bf16:
        raise ValueError("is one precision, and `pure_bf16` another: give one")
    return "fp16" if value else None


def recomputed(value: Any, use_unsloth_gc: Any = None) -> Any:
    """Return whether layers are computed again; None where `use_unsloth_gc` says how."""
    return None if value is True and use_unsloth_gc else value


def not_recomputed(value: Any, use_unsloth_gc: Any = None) -> Any:
    """Return the same for the key that says the opposite."""
    return recomputed(not switched(value), use_unsloth_gc)


def offloaded(value: Any, disable_gradient_checkpointing: Any = None) -> str | None:
    """Return how layers are computed again; None where they are not."""
    return "offload" if switched(value) and not disable_gradient_checkpointing else None


def greater(value: Any, metric_for_best_model: Any = None) -> Any:
    """Return which way the metric improves; None where that is the loss, which falls."""
    if metric_for_best_model is None and value:
        raise ValueError("alone it says of the loss that more is better: set `metric_for_best_model` too")
    return None if metric_for_best_model is None else value


def mixed(value: Any) -> str:
    """Take Megatron's name of mixed precision."""
    if value not in ("bf16_mixed", "fp16_mixed"):
        raise ValueError(f"there is no `{value}` here: set `bf16: true` or `fp16: true`, or leave all out for fp32")
    return str(value).removesuffix("_mixed")


class RunKeys(Keys):
    """Keys of the loop, of processes and of what is written."""

    keys = (
        Key("num_train_epochs", "train.epochs", default=EPOCHS),
        Key("max_steps", "train.max_steps", convert=counted(positive), together=_ROUND),
        Key("per_device_train_batch_size", "train.batch_size", default=8, unless="batch_tokens"),
        Key("per_gpu_train_batch_size", "train.batch_size"),
        Key("gradient_accumulation_steps", "train.accumulate"),
        Key("learning_rate", "train.learning_rate", convert=float),
        Key("warmup_ratio", "train.warmup", convert=warmup_ratio, together="lr_scheduler_type warmup_steps"),
        Key("warmup_steps", "train.warmup", convert=counted(warmup_steps), together=f"lr_scheduler_type {_ROUND}"),
        Key(
            "max_grad_norm",
            "train.max_grad_norm",
            convert=clipped,
            default=1.0,
            together="use_galore galore_layerwise use_apollo apollo_layerwise optim",
        ),
        Key("bf16", "train.precision", convert=half, default=False, together="pure_bf16 fp16"),
        Key("fp16", "train.precision", convert=scaled_half, together="pure_bf16"),
        Key("pure_bf16", "train.precision", convert=pure),
        Key("mixed_precision", "train.precision", convert=mixed),
        Key("gradient_checkpointing", "train.gradient_checkpointing", convert=recomputed, together="use_unsloth_gc"),
        Key(
            "use_unsloth_gc",
            "train.gradient_checkpointing",
            convert=offloaded,
            together="disable_gradient_checkpointing",
        ),
        Key("activation_checkpointing", "train.gradient_checkpointing"),
        Key("recompute_granularity", "train.gradient_checkpointing", convert=_CHECKPOINTED),
        Key(
            "disable_gradient_checkpointing",
            "train.gradient_checkpointing",
            convert=not_recomputed,
            together="use_unsloth_gc",
        ),
        Key("seed", "train.seed", default=42),
        Key("disable_shuffling", "train.shuffle", convert=NOT),
        Key("logging_steps", "train.log_every", convert=counted(whole), default=_LOGGED, together=_ROUND),
        Key(
            "eval_strategy",
            "train.eval_every",
            convert=counted(evaluations),
            default="no",
            together=f"eval_steps logging_steps num_train_epochs max_steps {_ROUND}",
        ),
        Key("do_train", "train.eval_every", convert=training),
        Key("do_eval", "train.eval_every", convert=beside_training("leave it out", ""), together="do_train"),
        Key(
            "do_predict",
            "train.eval_every",
            convert=beside_training("run `gym predict FILE`", "do_predict: `gym predict FILE` answers after training"),
            together="do_train",
        ),
        Key("per_device_eval_batch_size", "train.eval_every", convert=unread),
        Key(
            "save_strategy",
            "train.save_every",
            convert=counted(checkpoints),
            default="steps",
            together=f"save_steps num_train_epochs max_steps {_ROUND}",
        ),
        Key("save_total_limit", "train.keep_last", convert=kept, default=0),
        Key("eval_on_start", "train.eval_on_start"),
        Key("load_best_model_at_end", "train.load_best_model_at_end"),
        Key("metric_for_best_model", "train.metric_for_best_model"),
        Key("greater_is_better", "train.greater_is_better", convert=greater, together="metric_for_best_model"),
        Key("plot_loss", "train.plot"),
        Key("overwrite_output_dir", "train.overwrite"),
        Key("export_size", "export.shard_gigabytes", "safetensors"),
    )
