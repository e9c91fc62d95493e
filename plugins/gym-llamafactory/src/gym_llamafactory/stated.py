"""Keys that choose nothing and fill no option: what they may say, and what is to be said of any other value."""

from __future__ import annotations

from typing import Any, NamedTuple


class Stated(NamedTuple):
    """A key that may say what is done anyway."""

    values: tuple[Any, ...]  #: those that are taken; none: any value is, as it changes no result
    why: str = "is not supported"
    fix: str = ""


_OFF = (False, None)
_TEXT = Stated((None,), "is about images, video or audio, which are not read yet", "name a model and a dataset of text")
_DEVICE = "is done by a package that is not used here"
STATED: dict[str, Stated] = {
    "do_train": Stated((True,), fix="set it to true"),
    "do_eval": Stated(()),  # what is held out is measured at the end
    "do_predict": Stated(_OFF, fix="leave it out; `gym inference` answers prompts"),
    "predict_with_generate": Stated(_OFF, fix="leave it out; `gym inference` answers prompts"),
    "report_to": Stated(
        ("none", None, [], ["none"], "None"), fix="set it to none; metrics.jsonl has all that is measured"
    ),
    "run_name": Stated(()),  # a name for trackers
    "logging_dir": Stated(()),
    "save_only_model": Stated(()),  # checkpoints hold what a run needs to go on, whatever this says
    "save_strategy": Stated(("steps",), "checkpoints are written by steps", "leave it out, and set save_steps"),
    "packing": Stated(
        _OFF, "would let samples attend to one another", "leave it out: samples share rows, each attends to itself"
    ),
    "neat_packing": Stated(_OFF, "is done anyway", "leave it out: samples share rows, each attends to itself"),
    "use_v1_kernels": Stated(()),  # kernels that compute the same
    "use_swanlab": Stated(_OFF, fix="leave it out; metrics.jsonl has all that is measured"),
    "use_unsloth": Stated(_OFF, _DEVICE, "leave it out"),
    "use_unsloth_gc": Stated(_OFF, _DEVICE, "set `gradient_checkpointing: true`"),
    "use_reentrant_gc": Stated(()),  # both kinds of recomputation give the same numbers
    "gradient_checkpointing_kwargs": Stated(()),
    "enable_liger_kernel": Stated(_OFF, _DEVICE, "leave it out"),
    "use_kt": Stated(_OFF, "KTransformers is not used here", "leave it out, and its `kt_` keys"),
    "fp8": Stated(_OFF, "is not computed in here", "leave it out, and its `fp8_` keys, and set `bf16: true`"),
    "use_dft_loss": Stated(_OFF, "this loss is not here yet", "leave it out, for the usual one"),
    "use_asft_loss": Stated(_OFF, "this loss is not here yet", "leave it out, for the usual one"),
    "use_eaft_loss": Stated(_OFF, "this loss is not here yet", "leave it out, for the usual one"),
    "mixture_of_depths": Stated((None,), "is not here", "leave it out"),
    "freeze_vision_tower": Stated(()),  # models of text have none, and no others are read
    "freeze_multi_modal_projector": Stated(()),
    "freeze_language_model": Stated(_OFF, "is about models of images", "leave it out"),
    "image_max_pixels": _TEXT,
    "image_min_pixels": _TEXT,
    "video_max_pixels": _TEXT,
    "video_min_pixels": _TEXT,
    "video_fps": _TEXT,
    "video_maxlen": _TEXT,
    "deepspeed": Stated(
        (None,), "no file of DeepSpeed is read", "set `distributed: ddp`, or `distributed: fsdp` to cut weights up"
    ),
    "fsdp": Stated((None, ""), "is a section here", "set `distributed: fsdp`"),
    "ddp_find_unused_parameters": Stated(()),
    "remove_unused_columns": Stated(()),
    "include_num_input_tokens_seen": Stated(()),  # metrics.jsonl has them
    "streaming": Stated(_OFF, "rows are read before the first step", "leave it out, and its `buffer_size`"),
    "tokenized_path": Stated((None,), "is not needed: tokens are kept in the cache", "leave it out"),
    "eval_dataset": Stated((None,), "is not read yet", "set `val_size`"),
    "resume_from_checkpoint": Stated(
        (None, True, "true"), "a run goes on from its own last checkpoint", "leave it out"
    ),
    "export_dir": Stated((None,), "is of a file for `export`", "run it with `gym export`"),
    "compute_accuracy": Stated(_OFF, "is not measured", "leave it out"),
}
