"""How long and how is trained, how many samples make a step, and what is written."""

from __future__ import annotations

from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Key
from gym_dialect.convert import number, positive, switched

KEEP_ALL = 1_000_000  #: steps; more than any run has
EPOCHS, LENGTH = 1.0, 512  #: what `num_epochs` and `sequence_len` mean by being left out
_WARMUP, _MOST = 0.03, 100  #: the share of all steps that is warm-up where no key says it, and its most steps
_KEPT = 4  #: what `save_total_limit` means by being left out
_BY_ROWS = (
    "rl",
    "reward_model",
    "process_reward_model",
)  #: keys beside which a batch counts samples, whatever packing says
_SHAPE = f"sequence_len {' '.join(_BY_ROWS)}"
_HELD = "val_set_size test_datasets"
_SCHEDULED = f"num_epochs max_steps {_HELD}"
_RECOMPUTED = {True: True, False: False, "offload": "offload", "offload_disk": "offload", "unsloth": "offload"}


def whole_epochs(_: Any, sample_packing: Any = None, **more: Any) -> bool | None:
    """Return whether the last step of an epoch ends with it; steps of so many tokens do not."""
    return None if _packed(sample_packing, more) else True


def samples(micro: Any, sample_packing: Any = None, **more: Any) -> int | None:
    """Return the samples of a pass; None where a pass counts tokens."""
    return None if _packed(sample_packing, more) else int(micro)


def tokens(packing: Any, micro_batch_size: Any = None, sequence_len: Any = None, **more: Any) -> int | None:
    """Return the tokens of a pass of packed rows: so many rows of `sequence_len`; None where a pass counts samples."""
    return int(micro_batch_size or 1) * int(sequence_len or LENGTH) if _packed(switched(packing), more) else None


def _packed(packing: Any, more: dict[str, Any]) -> bool:
    return bool(packing) and not any(more.get(key) for key in _BY_ROWS)


def passes(batch_size: Any, micro_batch_size: Any = None, gradient_accumulation_steps: Any = None) -> int | None:
    """Return the passes of a step of so many samples; None where `gradient_accumulation_steps` says it."""
    micro = int(micro_batch_size or 1)
    if int(batch_size) % micro:
        raise ValueError(f"is no multiple of `micro_batch_size`, {micro}")
    return None if gradient_accumulation_steps else int(batch_size) // micro


def warmup(steps: Any, lr_scheduler: Any = None) -> float | None:
    """Return the warm-up; None where the schedule has none. 0 is none."""
    return None if lr_scheduler == "constant" else number(steps)


def warmup_ratio(share: Any, warmup_steps: Any = None, lr_scheduler: Any = None, max_steps: Any = None) -> float | None:
    """Return the warm-up as a share of all steps; None where `warmup_steps` says it. Left out, it is 3 %, at most 100 steps."""
    if warmup_steps is not None or lr_scheduler == "constant":
        return None
    if share == "":
        return min(int(_WARMUP * int(max_steps)), _MOST) or None if max_steps else _WARMUP
    if not 0 <= float(share) < 1:
        raise ValueError(
            f"is a share of all steps, from 0 and below 1, not {share}; `warmup_steps` is a number of them"
        )
    return number(share)


def evaluated(steps: Any, evals_per_epoch: Any = None, eval_strategy: Any = None, **more: Any) -> float | None:
    """Return the steps between two evaluations; None for the one at the end, and where nothing is held out."""
    if not any(more.get(key) for key in _HELD.split()):
        return None
    if evals_per_epoch and (share := _share(evals_per_epoch, more)):
        return share
    if steps:
        return _steps(steps)
    return _share(1, more) if eval_strategy == "epoch" else None


def on_start(_: Any, **more: Any) -> bool | None:
    """Return whether is evaluated before the first step: where it is evaluated in between."""
    named = (
        more.get("eval_steps") or more.get("evals_per_epoch") or more.get("eval_strategy") not in (None, False, "no")
    )
    return True if named and any(more.get(key) for key in _HELD.split()) else None


def saved(steps: Any, saves_per_epoch: Any = None, save_strategy: Any = None, **more: Any) -> float:
    """Return the steps between two checkpoints; the one at the end is always written. Left out, each epoch has one."""
    if saves_per_epoch and (share := _share(saves_per_epoch, more)):
        return share
    if steps:
        return _steps(steps)
    if save_strategy in ("no", False, "best"):
        return KEEP_ALL
    return _share(1, more) or KEEP_ALL


def _share(times: Any, more: dict[str, Any]) -> float | None:
    """Return how much of all steps lies between what happens so often in an epoch; None where that is all of it."""
    share = 1 / (float(times) * float(more.get("num_epochs") or EPOCHS))
    return share if share < 1 else None


def _steps(told: Any) -> float:
    steps = float(told)
    if steps <= 0 or (steps > 1 and steps != int(steps)):
        raise ValueError(f"give a whole number of steps, or a share of all below 1, not {told}")
    return steps if steps < 1 else int(steps)


def logged(steps: Any, max_steps: Any = None) -> int | None:
    """Return the steps between two lines of the log; left out, one in two hundred, at most 10; None where nobody knows."""
    if steps == "":
        return max(1, min(10, int(0.005 * int(max_steps)))) if max_steps else None
    return int(steps)


def half(value: Any, fp16: Any = None, **more: Any) -> str | None:
    """Return the precision; None where `fp16` says it."""
    other = fp16 or more.get("float16")
    if value == "auto":
        return None if other else "auto"
    if value is not True and value is not False and value != "full":
        raise ValueError(f"is true, false or auto, not `{value}`")
    return "bf16" if value else None if other else "fp32"


def scaled_half(value: Any, bf16: Any = None) -> str | None:
    """Return the precision where it is fp16, which `bf16: true` outweighs."""
    return "fp16" if switched(value) and bf16 in (None, False, "auto") else None


def offloaded(value: Any) -> str | None:
    """Return how layers are computed again where their inputs are put elsewhere."""
    return "offload" if value else None


def recomputed(value: Any, activation_offloading: Any = None, **more: Any) -> Any:
    """Return how layers are computed again; None where another key says how."""
    if value not in _RECOMPUTED:
        raise ValueError(f"is one of: {', '.join(map(str, _RECOMPUTED))}, not `{value}`")
    return None if activation_offloading or any(more.values()) else _RECOMPUTED[value]


def sliced(value: Any, activation_offloading: Any = None) -> str | None:
    """Return how layers are computed again where feed-forward networks are, in slices of the row."""
    return "tiled" if value and not activation_offloading else None


class RunKeys(Keys):
    """Keys of the loop and of what is written."""

    keys = (
        Key("num_epochs", "train.epochs"),
        Key("max_steps", "train.max_steps", convert=positive),
        Key("micro_batch_size", "train.batch_size", convert=samples, default=1, together=f"sample_packing {_SHAPE}"),
        Key("", "data.whole_epochs", "dataset", whole_epochs, "", together=f"sample_packing {' '.join(_BY_ROWS)}"),
        Key("sample_packing", "train.batch_tokens", convert=tokens, together=f"micro_batch_size {_SHAPE}"),
        Key("gradient_accumulation_steps", "train.accumulate"),
        Key(
            "batch_size",
            "train.accumulate",
            convert=passes,
            together="micro_batch_size gradient_accumulation_steps",
        ),
        Key("learning_rate", "train.learning_rate", convert=float),
        Key("warmup_steps", "train.warmup", convert=warmup, together="lr_scheduler"),
        Key(
            "warmup_ratio",
            "train.warmup",
            convert=warmup_ratio,
            default="",
            together="warmup_steps lr_scheduler max_steps",
        ),
        Key("max_grad_norm", "train.max_grad_norm"),
        Key("bf16", "train.precision", convert=half, default="auto", together="fp16 float16"),
        Key("bfloat16", "train.precision", convert={True: "bf16", False: None}),
        Key("fp16", "train.precision", convert=scaled_half, together="bf16"),
        Key("float16", "train.precision", convert=scaled_half, together="bf16"),
        Key(
            "gradient_checkpointing",
            "train.gradient_checkpointing",
            convert=recomputed,
            together="activation_offloading tiled_mlp selective_checkpointing",
        ),
        Key("activation_offloading", "train.gradient_checkpointing", convert=offloaded),
        Key("tiled_mlp", "train.gradient_checkpointing", convert=sliced, together="activation_offloading"),
        Key(
            "selective_checkpointing",
            "train.gradient_checkpointing",
            convert=lambda value: "selective" if value else None,
        ),
        Key("seed", "train.seed", default=42),
        Key("curriculum_sampling", "train.shuffle", convert={True: False, False: True}),
        Key("logging_steps", "train.log_every", convert=logged, default="", together="max_steps"),
        Key(
            "eval_steps",
            "train.eval_every",
            convert=evaluated,
            default=0,
            together=f"evals_per_epoch eval_strategy evaluation_strategy {_SCHEDULED}",
        ),
        Key(
            "",
            "train.eval_on_start",
            convert=on_start,
            default="",
            together=f"eval_steps evals_per_epoch eval_strategy {_HELD}",
        ),
        Key(
            "save_steps",
            "train.save_every",
            convert=saved,
            default=0,
            together=f"saves_per_epoch save_strategy {_SCHEDULED}",
        ),
        Key("save_total_limit", "train.keep_last", default=_KEPT),
        Key("load_best_model_at_end", "train.load_best_model_at_end"),
        Key("metric_for_best_model", "train.metric_for_best_model"),
        Key("greater_is_better", "train.greater_is_better"),
    )
