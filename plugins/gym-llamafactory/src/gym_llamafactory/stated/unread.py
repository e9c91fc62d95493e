"""Keys that may say anything, as no number of a run depends on them, by why that is so."""

from __future__ import annotations

from gym_dialect.stated import Stated, unread

_BY_REASON = {
    "how an evaluation is cut up; its loss is the same": "prediction_loss_only eval_accumulation_steps eval_do_concat_batches "
    "eval_use_gather_object batch_eval_metrics include_for_metrics include_inputs_for_metrics per_gpu_eval_batch_size",
    "what is printed, or measured beside the run": "log_level log_level_replica log_on_each_node logging_nan_inf_filter "
    "disable_tqdm skip_memory_metrics print_param_status include_num_input_tokens_seen include_tokens_per_second "
    "include_effective_tokens_per_second profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_active_steps "
    "profiler_repeat profiler_record_shapes profiler_profile_memory profiler_with_stack tpu_metrics_debug",
    "checkpoints hold all that a run needs to go on, in safetensors": "save_only_model save_safetensors save_on_each_node "
    "restore_callback_states_from_checkpoint enable_jit_checkpoint",
    "how the same is computed": "use_v1_kernels use_reentrant_gc gradient_checkpointing_kwargs activation_checkpointing_kwargs "
    "use_legacy_prediction_loop torch_compile_backend torch_compile_mode torch_empty_cache_steps low_cpu_mem_usage use_cache "
    "upcast_lmhead_output cross_entropy_loss_fusion masked_softmax_fusion bias_activation_fusion apply_rope_fusion "
    "moe_grouped_gemm moe_token_dispatcher_type",
    "how processes find or wait for each other, or exchange gradients": "ddp_find_unused_parameters ddp_bucket_cap_mb "
    "ddp_broadcast_buffers ddp_static_graph ddp_backend local_rank master_addr master_port mp_parameters fsdp_config "
    "fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap use_distributed_optimizer overlap_param_gather overlap_grad_reduce "
    "hyper_parallel_args hyper_parallel_cp_size",
    "how rows are read, not what they are": "remove_unused_columns preprocessing_batch_size data_shared_file_system "
    "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context "
    "dataloader_in_order length_column_name",
    "where downloads lie; here it is HF_HOME that says so": "cache_dir",
    "weights go from process to process as they are held": "fp8_enable_fsdp_float8_all_gather",
    "it counts with `fp16`": "fp16_opt_level half_precision_backend fp16_backend",
    "it counts with `use_kt`": "kt_cpu_activation kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path "
    "kt_use_lora_experts kt_lora_expert_num kt_lora_expert_intermediate_size kt_config",
    "it counts with `recompute_granularity`": "recompute_method recompute_num_layers",
    "it counts with `pipeline_model_parallel_size`": "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split",
    "it counts with `badam_mode: ratio`": "badam_update_ratio badam_mask_mode",
    "it counts with `push_to_hub`": "hub_model_id hub_strategy hub_private_repo hub_always_push hub_revision "
    "push_to_hub_model_id push_to_hub_organization",
    "it counts with `use_liger_kernel`": "liger_kernel_config",
    "it counts with `task`": "task_dir lang n_shot save_dir download_mode",
    "it counts where answers are written: `gym predict`, `gym inference`": "generation_max_length generation_num_beams "
    "generation_config "
    "eval_num_beams do_sample top_k num_beams max_length repetition_penalty length_penalty skip_special_tokens infer_backend "
    "infer_dtype offload_folder use_kv_cache vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config "
    "sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend",
    "it counts in a file for `gym export`": "export_device export_quantization_bit export_quantization_dataset "
    "export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id",
    "the model is written in the layout of transformers anyway": "export_hf_on_finish",
    "the number of processes is that of `gym train --nproc`": "ray_scope",
}
UNREAD: dict[str, Stated] = {
    key: entry for why, keys in _BY_REASON.items() for key, entry in unread(why, keys.split()).items()
}
