"""Keys that would change numbers, or what is written, and may say what is done anyway alone."""

from __future__ import annotations

from gym_dialect.stated import OFF, Stated, refused

NONE = (None,)
_TREE = "is done by code of axolotl's own"
NUMBERS: dict[str, Stated] = {
    "loss_watchdog_threshold": Stated(
        why="the loss is not watched", note="a run stops where the loss is no number, not above this"
    ),
    "loss_watchdog_patience": Stated(why="it counts with `loss_watchdog_threshold`"),
    "special_tokens.bos_token": Stated(
        why="a text begins as the tokenizer begins it",
        note="a text begins with the token that the tokenizer puts there",
    ),
    "tokenizer_use_mistral_common": Stated(
        why="tokens and chats are those of the tokenizer beside the model",
        note="tokens are those of the model's files for transformers",
    ),
    "tokenizer_legacy": Stated((None, True), "tokens are those of the tokenizer's own files", "leave it out"),
    "tokenizer_config": Stated(NONE, "another tokenizer is not taken", "put its files beside the model"),
    "base_model_config": Stated(
        NONE, "the configuration is that of the model", "put its config.json beside the weights"
    ),
    "use_ray": Stated(
        why="`gym train --nproc` starts processes", note="Ray is not used; `gym train --nproc N` starts N processes"
    ),
    "ray_num_workers": Stated(why="`gym train --nproc` starts processes"),
    "resume_from_checkpoint": Stated(NONE, "a run goes on from its own last checkpoint", "leave it out"),
    "group_by_length": Stated(OFF, "samples come in a random order", "leave it out"),
    "min_sample_len": Stated((None, 0), "short rows are kept", "leave it out, and take them out of the rows"),
    "eval_sequence_len": Stated(NONE, "is that of training", "leave it out"),
    "max_prompt_len": Stated(NONE, "a prompt is cut where `sequence_len` ends", "leave it out"),
    "max_packed_sequence_len": Stated(NONE, "is an old key", "set `sample_packing: true`, and `sequence_len`"),
    "dataset_exact_deduplication": Stated(OFF, "equal rows are kept", "leave it out, and take them out of the rows"),
    "lr_quadratic_warmup": Stated(OFF, "warm-up is a straight line", "leave it out"),
    "cosine_constant_lr_ratio": Stated(
        (0, 0.0, None), "the wave ends with the run", "set the section `scheduler: wsd`"
    ),
    "dataloader_drop_last": Stated(
        OFF, "would lose samples", "leave it out: the last step of an epoch has what is left"
    ),
    "auto_find_batch_size": Stated(
        OFF, "is another option here", "set `batch_tokens: auto` in place of `micro_batch_size`"
    ),
    "do_causal_lm_eval": Stated(
        OFF, "answers are not scored in training", "leave it out: `gym predict` scores answers"
    ),
    "eval_causal_lm_metrics": Stated(
        NONE, "answers are not scored in training", "leave it out: `gym predict` scores answers"
    ),
    "model_quantization_config": Stated(
        (None, "Mxfp4Config"), "weights are read as they are stored", "leave it out, or set the section `quantization`"
    ),
    "model_quantization_config_kwargs.dequantize": Stated(
        why="weights in MXFP4 are unpacked", note="weights in MXFP4 are unpacked as the model is read"
    ),
    "bnb_config_kwargs.bnb_4bit_compute_dtype": Stated(why="it is the precision of the run"),
    "bnb_config_kwargs.bnb_4bit_quant_storage": Stated(why="how weights are stored"),
    "hub_model_id": Stated(NONE, "nothing is uploaded", "leave it out, and upload the folder: `hf upload NAME FOLDER`"),
    "hf_use_auth_token": Stated((None, True, False), "a file holds no token", "leave it out: `hf auth login`"),
    "push_dataset_to_hub": Stated(NONE, "nothing is uploaded", "leave it out"),
    "trl.reward_weights": Stated(NONE, "goes with `trl.reward_funcs`", "leave it out"),
    **refused(
        OFF,
        _TREE,
        "leave it out",
        (
            "use_pose",
            "scaling_softmax",
            "shrink_embeddings",
            "mean_resizing_embeddings",
            "do_bench_eval",
            "dpo_use_weighting",
            "dpo_norm_loss",
            "dpo_generate_during_eval",
            "s2_attention",
            "peft_ensure_weight_tying",
            "trl.streaming_partial_batch",
            "trl.use_data_producer",
            "trl.async_prefetch",
            "trl.vllm_importance_sampling_correction",
            "trl.use_bias_correction_kl",
            "use_comet",
        ),
    ),
    **refused(
        NONE,
        _TREE,
        "leave it out",
        (
            "adam_beta3",
            "adam_epsilon2",
            "added_tokens_overrides",
            "bench_dataset",
            "bench_split",
            "comet_experiment_config",
            "comet_experiment_key",
            "comet_mode",
            "comet_online",
            "comet_project_name",
            "comet_workspace",
            "dataset_shard_idx",
            "dataset_shard_num",
            "dion_lr",
            "dion_momentum",
            "dpo_beta",
            "dpo_loss_weights",
            "ebft",
            "lora_alpha_pattern",
            "lora_rank_pattern",
            "overrides_of_model_kwargs",
            "model_kwargs",
            "peft_layer_replication",
            "peft_layers_pattern",
            "peft_layers_to_transform",
            "peft_trainable_token_indices",
            "pose_max_context_len",
            "pose_num_chunks",
            "pose_split_on_token_ids",
            "image_resize_algorithm",
            "image_size",
            "processor_kwargs",
            "role_boundaries",
            "scaling_softmax_bias",
            "scaling_softmax_factor",
            "trl.chat_template_kwargs",
            "trl.generation_kwargs",
            "trl.rollout_func",
            "trl.vllm_guided_decoding_regex",
        ),
    ),
    "use_onebitllms": Stated(OFF, "weights of 1.58 bits are not trained", "leave it out"),
    "nvfp4_merge_aware": Stated(
        OFF, "weights are not held in NVFP4 while an adapter trains", "set `load_in_4bit: true`"
    ),
    "qat": Stated(
        NONE,
        "weights are not rounded while they train",
        "leave it out, and run `gym quantize` on the model that is made",
    ),
    "diffusion": Stated(NONE, "texts are learnt from left to right", "leave it out"),
    "llmcompressor": Stated(
        NONE, "weights are not made sparse", "leave it out, and run `gym quantize` on the model that is made"
    ),
    "relora": Stated(OFF, "updates are not merged while they train", "leave it out, and set a larger `lora_r`"),
    "jagged_restart_steps": Stated(
        NONE, "the learning rate does not start again", "set `lr_scheduler: cosine_with_restarts`"
    ),
    **refused(
        NONE,
        "the learning rate is the same for all weights",
        "leave it out, or set `loraplus_lr_ratio`",
        ("embedding_lr", "embedding_lr_scale", "lr_groups", "lr_div_factor"),
    ),
    "trainer_cls": Stated(
        NONE, "is code of yours, which is not run", "write a plugin: `gym new-plugin algorithm NAME`"
    ),
    "float32": Stated((None, True), "is the precision where `bf16` and `fp16` are off", "set `bf16: false`"),
    "fix_untrained_tokens": Stated(
        (None, False, []), "is not done: rows of new tokens begin around the mean", "leave it out"
    ),
    "generate_samples": Stated(
        OFF, "answers are not shown in training", "leave it out: `gym chat` answers with the run"
    ),
    "trl.replay_buffer_size": Stated((0, None), "what was sampled is learnt from at once", "leave it out"),
    **refused(
        NONE,
        "a file that others may read should hold no token",
        "leave it out: `swanlab login`, or SWANLAB_API_KEY",
        ("swanlab_api_key", "swanlab_lark_secret", "swanlab_lark_webhook_url"),
    ),
    **{
        key: Stated(why="axolotl knows no such key either", note="axolotl knows no such key, and trains without it")
        for key in ("adam_eps", "eta_min", "full_finetune", "test_value", "torch_dtype")
    },
    "comet_api_key": Stated(NONE, "a file that others may read should hold no token", "leave it out"),
    "freeze_mm_modules": Stated(
        (None, True), "the vision tower stays as it is", "set the section `adapter: full`, with what trains"
    ),
}
