"""Keys about packages, devices and processes that are not used here."""

from __future__ import annotations

from gym_dialect.stated import OFF, Stated, refused

_PACKAGE = "is done by a package that is not used here"
_ONE = (1, None)
_CUT = "would cut layers up over processes, which is not done here"
_FSDP = "set it to 1, and `distributed: fsdp`, which cuts weights up"
DEVICES: dict[str, Stated] = {
    "use_unsloth": Stated(OFF, _PACKAGE, "leave it out"),
    "use_liger_kernel": Stated(OFF, _PACKAGE, "set `enable_liger_kernel: true`, and install gym-accel"),
    "use_kt": Stated(
        OFF, "needs KTransformers, which is not used here", "leave it out: the experts then lie where the model does"
    ),
    "use_mca": Stated(OFF, "needs Megatron, which is not used here", "leave it out"),
    "use_megatron_bridge": Stated(OFF, "needs Megatron, which is not used here", "leave it out"),
    "megatron_pretrained_checkpoint": Stated(
        (None,), "is a format of Megatron", "leave it out: weights are safetensors"
    ),
    "extra_config": Stated((None,), "is for Megatron", "leave it out"),
    "use_hyper_parallel": Stated(OFF, _PACKAGE, "leave it out"),
    "ray_num_workers": Stated(
        why="Ray starts processes there; here `gym train --nproc` does",
        note="Ray is not used; `gym train --nproc N` starts N processes",
    ),
    "ray_init_kwargs": Stated((None,), "Ray is not used here", "leave it out; `gym train --nproc N` starts processes"),
    "tpu_num_cores": Stated((None,), "TPUs are not used here", "leave it out"),
    "use_mps_device": Stated(OFF, "is found out", "leave it out"),
    "no_cuda": Stated(OFF, "is found out", "leave it out, and hide GPUs: CUDA_VISIBLE_DEVICES= gym train FILE"),
    "use_cpu": Stated(OFF, "is found out", "leave it out, and hide GPUs: CUDA_VISIBLE_DEVICES= gym train FILE"),
    "tf32": Stated(OFF, "fp32 products stay fp32", "leave it out"),
    "adafactor": Stated(OFF, "is a value of `optim`", "set `optim: adafactor`"),
    "past_index": Stated((-1, None), "is not used", "leave it out"),
    "jit_mode_eval": Stated(OFF, "is not used", "leave it out"),
    "debug": Stated(("", None, (), []), "is not looked at", "leave it out"),
    "enable_torch_profiler": Stated(OFF, "is not done", "leave it out"),
    "profile_modules": Stated((None,), "is not done", "leave it out"),
    "task": Stated(
        (None,), "is of a file for `eval`: a benchmark", "ask it with `gym eval MODEL --tasks mmlu`, of gym-eval"
    ),
    "export_dir": Stated((None,), "is of a file for `export`", "run it with `gym export`"),
    "adapter_folder": Stated((None,), "is not looked at", "write the whole path into `adapter_name_or_path`"),
    **refused(
        (None,),
        "is for accelerate, which starts no process here",
        "leave it out",
        ("accelerator_config", "parallelism_config"),
    ),
    "virtual_pipeline_model_parallel_size": Stated(_ONE, _CUT, _FSDP),
    "sequence_parallel": Stated(
        why="it counts with `tensor_model_parallel_size`, and says where activations lie",
    ),
}
