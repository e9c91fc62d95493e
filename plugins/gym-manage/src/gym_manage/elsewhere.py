"""Names that transformers, TRL, verl and others have for what a recipe says otherwise, and what to write instead.

Data for errors about unknown keys. Names that the docstring of an option has (`num_generations` in TRL) need no entry.
"""

from __future__ import annotations

_MEANT = {
    "algorithm": "stage pref_loss rl",
    "adapter": "finetuning_type peft_config use_peft use_dora use_rslora",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "adapter.modules_to_save": "lora_modules_to_save",
    "adapter.rank": "lora_r lora_rank",
    "adapter.target_modules": "lora_target lora_target_modules lora_target_parameters",
    "algorithm.beta": "kl_coef kl_loss_coef kl_ctrl",
    "algorithm.environment": "max_tool_calling_iterations max_user_turns tool_config_path interaction_config_path",
    "algorithm.epsilon": "clip_ratio_low",
    "algorithm.epsilon_high": "clip_ratio_high",
    "algorithm.eval_samples": "num_generations_eval",
    "algorithm.importance_sampling_correction": "vllm_importance_sampling_correction rollout_correction rollout_is rollout_rs",
    "algorithm.kl_estimator": "kl_loss_type kl_penalty",
    "algorithm.max_new_tokens": "generation_max_length response_length max_response_length",
    "algorithm.max_resample": "max_num_gen_batches",
    "algorithm.num_mini_batches": "steps_per_generation",
    "algorithm.rewards": "reward_funcs reward_model_path reward_manager",
    "algorithm.routing_replay": "router_replay",
    "algorithm.scale_rewards": "norm_adv_by_std_in_grpo",
    "callbacks": "report_to early_stopping_patience early_stopping_threshold logger",
    "data": "dataset datasets dataset_name train_file",
    "data.cutoff": "max_prompt_length max_target_length",
    "data.format": "read_as",
    "data.overlong": "filter_overlong_prompts",
    "data.processes": "dataset_num_proc preprocessing_num_workers",
    "data.sources": "dataset_config dataset_train_split",
    "data.streaming": "dataset_streaming",
    "data.template": "chat_template_path chat_template",
    "data.template_options": "chat_template_kwargs",
    "data.validation_sources": "dataset_test_split eval_dataset",
    "distributed": "deepspeed fsdp fsdp_config",
    "distributed.processes": "nproc nproc_per_node num_processes world_size nnodes n_gpus_per_node",
    "distributed.timeout": "ddp_timeout",
    "model": "base_model model_init_kwargs model_name_or_path",
    "model.compile": "torch_compile torch_compile_backend torch_compile_mode torchdynamo",
    "model.kernels": "use_liger_kernel liger_kernel_config enable_liger_kernel",
    "model.quantization": "load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant",
    "model.revision": "model_revision",
    "optimizer": "optim optim_args",
    "output": "output_dir logging_dir default_local_dir",
    "scheduler": "lr_scheduler_type lr_scheduler_kwargs warmup_style",
    "train.batch_size": "ppo_micro_batch_size ppo_micro_batch_size_per_gpu",
    "train.epochs": "total_epochs",
    "train.gradient_checkpointing": "activation_checkpointing enable_gradient_checkpointing",
    "train.eval_every": "eval_strategy evaluation_strategy test_freq",
    "train.eval_on_start": "val_before_train",
    "train.keep_last": "max_actor_ckpt_to_keep max_critic_ckpt_to_keep",
    "train.log_every": "logging_strategy",
    "train.max_grad_norm": "grad_clip",
    "train.max_steps": "total_training_steps",
    "train.overwrite": "overwrite_output_dir",
    "train.save_every": "save_strategy save_freq",
    "train.seed": "data_seed",
    "train.shuffle": "shuffle_dataset",
    "train.warmup": "lr_warmup_steps lr_warmup_steps_ratio",
}
_WRITE = {
    "leave it out: no result depends on it here": "batch_eval_metrics dataloader_in_order dataloader_multiprocessing_context "
    "dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend "
    "ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph debug disable_tqdm "
    "ds3_gather_for_generation eval_accumulation_steps eval_do_concat_batches eval_use_gather_object "
    "gradient_checkpointing_kwargs activation_checkpointing_kwargs cache_implementation ignore_bias_buffers "
    "include_for_metrics include_num_input_tokens_seen include_tokens_per_second length_column_name local_rank "
    "log_level log_level_replica log_on_each_node logging_nan_inf_filter lora_task_type pad_to_multiple_of "
    "precompute_ref_batch_size prediction_loss_only remove_unused_columns skip_memory_metrics torch_empty_cache_steps "
    "use_cache use_reentrant balance_batch use_dynamic_bsz ppo_max_token_len_per_gpu log_prob_micro_batch_size "
    "log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz entropy_from_logits_with_chunking entropy_checkpointing "
    "calculate_log_probs free_cache_engine",
    "leave it out: samples share rows without padding as it is, each with its own attention": "padding_free group_by_length "
    "use_remove_padding",
    "leave it out: samples share rows as it is, and a batch counts samples; `train.batch_tokens` counts tokens": "packing "
    "packing_strategy neat_packing eval_packing sample_packing eval_sample_packing multipack_real_batches",
    "leave it out: the same command goes on from the last checkpoint": "resume_from_checkpoint ignore_data_skip "
    "resume_mode "
    "restore_callback_states_from_checkpoint",
    "leave it out: a checkpoint holds all that a run needs to go on": "save_only_model save_on_each_node save_safetensors "
    "enable_jit_checkpoint",
    "leave it out: samples that are held out are evaluated in batches as in training": "per_device_eval_batch_size",
    "leave it out: an evaluation comes every `train.eval_every` steps, and at the end": "eval_delay",
    "leave it out: what a step has less than another does not count in it": "average_tokens_across_devices",
    "leave it out: dropout is off where policy and reference are compared": "disable_dropout",
    "leave it out: `gym train` trains, and evaluates what `data.validation` holds out": "do_train do_eval",
    "leave it out: `gym predict` answers rows, and scores the answers": "do_predict predict_with_generate",
    "leave it out: devices are found out; `CUDA_VISIBLE_DEVICES=` hides GPUs": "use_cpu no_cuda use_mps_device",
    "leave it out: `gym train --nproc N` starts processes": "accelerator_config parallelism_config",
    "leave it out: the last step of an epoch has what is left": "dataloader_drop_last",
    "leave it out: evaluation is as precise as training": "bf16_full_eval fp16_full_eval",
    "leave it out: products in fp32 stay fp32": "tf32",
    "name an algorithm that has it: `label_smoothing` of `sft` and `pretrain`": "label_smoothing_factor",
    "name an algorithm that has it: `cdpo`, `robust_dpo`, `exo`, `sft` or `pretrain`": "label_smoothing",
    "leave it out: a run on a CPU repeats bit for bit": "full_determinism",
    "leave it out: the format of rows is told from their columns, or by `data.format`": "dataset_text_field dataset_kwargs "
    "label_names",
    "leave it out: the tokenizer of the model says it": "eos_token pad_token",
    "leave it out: samples come in an order of their own": "train_sampling_strategy",
    "leave it out, and upload the folder: `hf upload NAME FOLDER`": "push_to_hub hub_token hub_private_repo hub_model_id "
    "hub_strategy hub_always_push hub_revision log_completions_hub_repo",
    "leave it out: the end of what is too long is cut off, or `data.overlong: drop` leaves it out": "truncation_mode",
    "set `train.batch_tokens: auto`": "auto_find_batch_size",
    "set `train.log_every: 1`": "logging_first_step",
    "set `train.gradient_checkpointing: offload`": "activation_offloading",
    "name a tracker: `callbacks: [{name: wandb, run: ...}]`": "run_name experiment_name project_name",
    "name a tracker: `callbacks: [{name: trackio, space_id: ...}]`": "trackio_space_id trackio_bucket_id "
    "trackio_static_space_id",
    "name an optimizer that has them: `optimizer: {name: galore, target_modules: ...}`": "optim_target_modules",
    "name it: `algorithm: {rollouts: vllm}` or `vllm-colocated`; without, completions are sampled by Gym": "use_vllm",
    "name it: `algorithm: {rollouts: vllm}` or `vllm-colocated`": "vllm_mode vllm_model_impl "
    "vllm_enable_sleep_mode vllm_group_port",
    "set `url` of it: `algorithm: {rollouts: {name: vllm, url: ...}}`": "vllm_server_base_url vllm_server_host vllm_server_port",
    "set `startup` of it: `algorithm: {rollouts: {name: vllm, startup: ...}}`": "vllm_server_timeout",
    "set it there: `algorithm: {rollouts: {name: vllm, gpu_memory_utilization: ...}}`": "vllm_gpu_memory_utilization "
    "gpu_memory_utilization",
    "set it there: `algorithm: {rollouts: {name: vllm, max_model_len: ...}}`": "vllm_max_model_length max_model_len",
    "set it there: `algorithm: {rollouts: {name: vllm, tensor_parallel_size: ...}}`": "vllm_tensor_parallel_size "
    "tensor_model_parallel_size",
    "leave it out: the engine of `algorithm.rollouts` batches what is under way": "use_transformers_continuous_batching "
    "transformers_continuous_batching_config use_transformers_paged",
    "set `algorithm.importance_sampling_correction`, whose bounds are its own": "vllm_importance_sampling_mode "
    "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap rollout_is_threshold "
    "rollout_rs_threshold tis_imp_ratio_cap",
    "give each reward its own: `rewards: [{name: ..., weight: 2}]`": "reward_weights",
    "name the algorithm by it, as `algorithm: ipo`; `sigmoid` is `dpo`, several are `mpo`, `dapo` of TRL is `grpo` "
    "with `loss_agg_mode: token-mean`": "loss_type",
    "name an adapter: `adapter: {name: lora, target_modules: ...}`, or `freeze`; gradients of `rmu` reach the layers up to "
    "`layer` alone": "trainable_params_regex layer_ids param_ids",
    "label rows by their sources: `data: {sources: [{name: forget, source: ...}, {name: retain, source: ...}]}`": ""
    "forget_split retain_split",
    "`grad_diff`, `npo` and `simnpo` have it; `rmu` holds the states (`EMBED_DIFF`) without it": "retain_loss_type",
    "name the algorithm: `gspo`, `luspo` for sequences, `grpo` for tokens": "importance_sampling_level",
    "name the algorithm: `gdpo` normalizes each reward, `grpo` their sum": "multi_objective_aggregation",
    "name the algorithm: `reinforce_pp_baseline` normalizes advantages over a round": "normalize_advantages",
    "set `algorithm.kl_estimator`: `k3_is`, the default, is corrected, and `k3` is not": "use_bias_correction_kl",
    "leave it out: completions are sampled by `temperature`, `top_p`, `top_k`, `min_p` alone, which training knows": ""
    "generation_kwargs repetition_penalty vllm_structured_outputs_regex",
    "set `train.batch_size`, the completions of a step, and `algorithm.num_mini_batches`": "generation_batch_size "
    "ppo_mini_batch_size",
    "set `train.batch_size` and `train.accumulate`, samples or completions of a step": "train_batch_size",
    "set `algorithm.kl_target`, in nats a completion and not a token": "target_kl",
    "set `algorithm.eval_samples` and `algorithm.eval_temperature`": "val_kwargs",
    "set `algorithm.max_resample`, and perhaps `algorithm.filter_metric`": "filter_groups",
    "set `algorithm.beta`; `algorithm.kl_estimator: k1_in_reward` counts it in the reward, the others in the loss": ""
    "use_kl_loss use_kl_in_reward",
    "name the algorithm by it, as `algorithm: rloo`; `gae` is `ppo`": "adv_estimator",
    "name the algorithm by it, as `algorithm: gspo`; `vanilla` is `grpo` or `ppo`, `geo_mean` is `gmpo`": "policy_loss loss_mode",
    "name it: `algorithm: {rewards: [{name: python, function: my_rewards.py:score}]}`": "custom_reward_function",
    "leave it out: a reward reads the columns that its own options name": "reward_fn_key",
    "write its parts by themselves: `model`, `algorithm`, `optimizer` and `train` have the options of them": ""
    "actor_rollout_ref",
    "leave it out: `gym rollouts show` prints completions": "num_completions_to_print log_unique_prompts log_multimodal",
    "leave it out: rewards are not clipped; a reward of your own can": "reward_clip_range",
    "leave it out: the divergence is the reverse KL; `algorithm: exo`, `ipo` and others have other losses": ""
    "f_divergence_type f_alpha_divergence_coef",
    "leave it out: all pairs weigh the same": "use_weighting",
    "name an algorithm without a reference: `simpo`, `orpo` or `cpo`": "reference_free",
    "leave it out: answers are those of the data; what the student writes itself is learnt by a method of reinforcement "
    "learning with `ref_model` and `kl_estimator: full`": "lmbda seq_kd",
    "set `train.precision: fp32`, or leave it out: in bf16 the head multiplies in bf16, and its softmax is fp32": ""
    "cast_lm_head_to_fp32",
}
NAMES = {key: f"did you mean `{option}`?" for option, keys in _MEANT.items() for key in keys.split()} | {
    key: fix for fix, keys in _WRITE.items() for key in keys.split()
}
"""By name of another software, what to write instead."""
