"""Keys that may say anything, as no number of a run depends on them, by why that is so."""

from __future__ import annotations

from gym_dialect.stated import Stated, unread

_BY_REASON = {
    "how the same is computed": "gradient_checkpointing_kwargs flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_fuse_qkv "
    "flash_attn_rms_norm flash_optimum flex_attn_compile_kwargs xformers_attention sdp_attention flex_attention "
    "sage_attention eager_attention gemma4_hybrid_attn_impl large_head_attention flash_attn_d512 sdpa_varlen fused_attn_kernel "
    "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel chunked_cross_entropy "
    "chunked_cross_entropy_num_chunks cut_cross_entropy liger_fused_linear_cross_entropy liger_rms_norm_gated "
    "liger_use_token_scaling tiled_mlp_num_shards tiled_mlp_use_original_mlp layer_offloading use_kernels use_scattermoe "
    "use_sonicmoe experts_implementation llama4_linearized_experts dsv4_fp4_grouped_mode use_dsv4_kernels use_glm_dsa_kernels "
    "torch_compile_backend torch_compile_mode torch_compile_options torch_empty_cache_steps gc_steps gc_collect_steps "
    "low_cpu_mem_usage deepcompile dpo_use_liger_kernel dpo_use_logits_to_keep dpo_padding_free trl.use_liger_loss "
    "unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o unsloth_cross_entropy_loss",
    "weights are in the precision that training needs": "embeddings_skip_upcast peft_autocast_adapter_dtype lora_on_cpu "
    "qlora_sharded_model_loading fp32_norms fp32_norm_classes load_in_8bit_fp32_cpu_offload",
    "fp32 products stay exact": "tf32",
    "which class opens the model follows from its files": "model_type type_of_model cls_model_config tokenizer_type "
    "tokenizer_use_fast is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
    "is_qwen_derived_model num_labels base_model_ignore_patterns lora_fan_in_fan_out tokenizer_save_jinja_files",
    "padding counts for nothing": "pad_to_sequence_len pad_to_multiple_of special_tokens.pad_token special_tokens.unk_token",
    "rows are packed until they are full, in an order of their own": "eval_sample_packing sample_packing_group_size "
    "sample_packing_bin_size sample_packing_eff_est sample_packing_seq_len_multiplier sample_packing_sequentially "
    "sample_packing_mp_start_method multipack_real_batches batch_flattening total_num_tokens total_supervised_tokens "
    "pretrain_multipack_attn pretraining_sample_concatenation",
    "samples come in a random order anyway; `curriculum_sampling` keeps that of the file": "shuffle_merged_datasets "
    "shuffle_before_merging_datasets",
    "a chat ends a turn with what its template writes": "eot_tokens",
    "tokens are kept in a cache that finds them again by what made them": "dataset_prepared_path skip_prepare_dataset "
    "num_dataset_shards_to_save dataset_keep_in_memory is_preprocess",
    "rows for new tokens are added in multiples of 64": "resize_token_embeddings_to_32x",
    "a model that is quantized already is read as it is": "gptq",
    "how rows are read, not what they are": "preprocess_iterable "
    "remove_unused_columns dataloader_num_workers dataloader_pin_memory "
    "dataloader_prefetch_factor accelerator_config",
    "how an evaluation is cut up; its loss is the same": "eval_batch_size",
    "how processes find or wait for each other, or exchange gradients": "ddp ddp_bucket_cap_mb ddp_broadcast_buffers "
    "ddp_find_unused_parameters local_rank world_size device device_map max_memory gpu_memory_limit fsdp_version "
    "fsdp_final_state_dict_type fsdp_state_dict_type fp8_enable_fsdp_float8_all_gather "
    "dp_replicate_size heads_k_stride ring_attn_func expert_parallel_num_nvl_bytes expert_parallel_token_capacity "
    "experimental_skip_move_to_device",
    "checkpoints hold all that a run needs to go on, in safetensors": "save_safetensors save_only_model save_first_step "
    "dynamic_checkpoint auto_resume_from_checkpoints",
    "what is printed, or measured beside the run": "strict debug axolotl_config_path wandb_watch wandb_log_model "
    "wandb_run_id hf_mlflow_log_artifacts include_tokens_per_second include_tkps profiler_steps profiler_steps_start "
    "use_otel_metrics otel_metrics_host otel_metrics_port eval_table_size eval_max_new_tokens swanlab_description "
    "swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer swanlab_log_model "
    "trl.num_completions_to_print project_name",
    "it counts with `adapter: lora` over quantized experts, which are quantized as the rest is": "quantize_moe_experts",
    "it counts with a key that is off": "trl.prefetch_depth trl.ref_model_mixup_alpha trl.ref_model_sync_steps "
    "trl.replay_recompute_logps trl.skip_zero_advantage_batches trl.streaming_min_groups trl.vllm_importance_sampling_cap "
    "trl.vllm_importance_sampling_mode trl.vllm_sync_interval trl.reroll_start_fraction trl.reroll_max_groups "
    "generation_do_sample generation_max_new_tokens generation_prompt_ratio generation_temperature generation_top_k "
    "generation_top_p num_generation_samples swanlab_web_host swanlab_api_host "
    "gptq_groupsize gptq_model_v1 gptq_disable_exllama relora_prune_ratio "
    "relora_prune_method relora_cpu_offload jagged_restart_warmup_steps jagged_restart_anneal_steps "
    "qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size qgalore_gamma_proj "
    "dion_rank_fraction dion_rank_multiple_of hub_strategy hub_revision ray_run_name resources_per_worker torchdistx_path",
    "it counts in a file for serving": "gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens "
    "gradio_temperature merge_lora merge_method inference",
    "how the server of vLLM works, which is started by itself": "vllm trl.vllm_server_timeout trl.vllm_enable_sleep_mode "
    "trl.vllm_lora_sync trl.generation_batch_size trl.reward_num_workers",
}
UNREAD: dict[str, Stated] = {
    key: entry for why, keys in _BY_REASON.items() for key, entry in unread(why, keys.split()).items()
}
