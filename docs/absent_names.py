"""Names of components that people ask for and nobody brings, and what leads there: for the catalogue of error messages."""

from __future__ import annotations

#: Names that other software has for components, by what to write here.
ELSEWHERE = {
    "adapters": {"`lora`, with `model: {quantization: bnb_4bit}`": "qlora"},
    "algorithms": {
        "`pretrain`": "pt cpt",
        "`process_reward_model`": "prm",
        "`reward_model`": "rm",
        "`reinforce_pp`": "reinforce++",
    },
    "optimizers": {
        "`adamw`": "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused adamw_hf paged_adamw",
        "`adamw_8bit`": "adamw_bnb_8bit adamw_torch_8bit ao_adamw_8bit",
        "`apollo`": "apollo_adamw",
        "`apollo`, with `in_backward: true`": "apollo_adamw_layerwise",
        "`galore`": "galore_adamw",
        "`galore`, with `in_backward: true`": "galore_adamw_layerwise",
        "`lion`": "lion_32bit",
        "`q_galore`": "galore_adamw_8bit",
    },
    "schedulers": {
        "`constant`, which warms up for `train.warmup`": "constant_with_warmup",
        "`cosine`, with `min_lr_ratio`": "cosine_with_min_lr",
        "`cosine`, with `num_cycles`": "cosine_with_restarts",
        "`wsd`": "warmup_stable_decay",
    },
    "strategies": {"`fsdp`": "deepspeed zero2 zero3 fsdp2"},
}

#: What is asked for by name and nobody brings: why, and what leads there.
ABSENT = {
    "gym-export": {
        "exporters/coreml": "it runs on macOS alone, nothing could be compared: --to torchscript, and coremltools.convert there",
        "exporters/mlx": "it loads what transformers does: --to safetensors, and `mlx_lm.generate --model FOLDER` on a Mac",
        "exporters/tensorrt": "an engine fits the one GPU it was built on: --to onnx, and `trtexec --onnx=model.onnx` there",
    },
    "gym-serve": {
        "servers/sglang": "set engine=vllm (gym-vllm), or ask a `python -m sglang.launch_server --model-path FOLDER`",
        "servers/tgi": "TGI is in maintenance mode, and its authors advise vLLM or SGLang, which serve what `gym export` writes",
    },
}
