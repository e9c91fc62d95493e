"""Keys that would change numbers, or what is written, and may say what is done anyway alone."""

from __future__ import annotations

from gym_dialect.stated import OFF, Stated, refused

#: Why samples that are joined to rows of `cutoff_len` tokens are no option.
JOINED = "would have a batch count rows of cutoff_len tokens; here it counts samples, which share rows anyway"
COUNTED = "leave it out, and multiply per_device_train_batch_size by cutoff_len / mean tokens of a sample"
NUMBERS: dict[str, Stated] = {
    "logging_strategy": Stated(("steps",), "lines are written by steps", "leave it out, and set logging_steps"),
    "logging_first_step": Stated(OFF, "is a line as others are", "set `logging_steps: 1`"),
    "use_packed_sequences": Stated(OFF, JOINED, COUNTED),
    "eval_delay": Stated((0, None), "is not done", "leave it out: evaluations begin with the first `eval_steps`"),
    "ignore_pad_token_for_loss": Stated((True, None), "would train padding", "leave it out"),
    "resume_from_checkpoint": Stated(
        (None, True, "true"), "a run goes on from its own last checkpoint", "leave it out"
    ),
    "ignore_data_skip": Stated(OFF, "would show samples again", "leave it out: a run goes on at the next sample"),
    "label_names": Stated((None,), "is for models of other tasks", "leave it out"),
    "average_tokens_across_devices": Stated(
        (True, None), "each token counts the same on all processes", "leave it out"
    ),
    "calculate_per_token_loss": Stated((True, None), "each token counts the same in a step", "leave it out"),
    "data_seed": Stated((None,), "samples are drawn with the seed of the run", "leave it out, and set `seed`"),
    "full_determinism": Stated(OFF, "is no option", "leave it out: a run on a CPU repeats bit for bit"),
    "train_sampling_strategy": Stated((None, "random"), "samples come in a random order", "leave it out"),
    "dataloader_drop_last": Stated(
        OFF, "would lose samples", "leave it out: the last step of an epoch has what is left"
    ),
    "auto_find_batch_size": Stated(
        OFF, "is another option here", "set `batch_tokens: auto` in place of the batch size"
    ),
    "torchdynamo": Stated((None,), "is another key by now", "set `torch_compile: true`"),
    "mixture_of_depths": Stated(
        (None,), "needs the package mixture-of-depth, whose models no other tool reads", "leave it out"
    ),
    "module_dropout": Stated((0, 0.0, None), "is never applied by peft", "leave it out"),
    "pref_bco_weight": Stated(
        (0, 0.0, None),
        "is added to the loss of dpo by another algorithm",
        "write `algorithm: {name: mpo, loss_weights: {dpo: 1, bco_pair: ...}, ftx: 0}`, which measures from 0",
    ),
    "reward_model_type": Stated(
        (None, "lora", "full"), "no server is asked for rewards", "set it to full, and name a folder"
    ),
    "upcast_layernorm": Stated(OFF, "is not done: trained weights are fp32 anyway", "leave it out"),
    "use_fast_tokenizer": Stated((True, None), "slow tokenizers are not read", "leave it out"),
    "quantization_device_map": Stated((None,), "the device is that of the process", "leave it out"),
    **refused(OFF, "samples come in a random order", "leave it out", ("group_by_length", "sortish_sampler")),
    "predict_with_generate": Stated(
        why="it counts with `do_predict`: `gym predict`",
        note="evaluations in training measure the loss; `gym predict FILE` answers, and scores answers",
    ),
    **refused(OFF, "evaluation is as precise as training", "leave it out", ("bf16_full_eval", "fp16_full_eval")),
    **refused(
        (None,),
        "belongs to a model of its own",
        "merge it with `gym export`, and name the folder that is written",
        ("ref_model_adapters", "reward_model_adapters"),
    ),
    "init_special_tokens": Stated(
        ("noise_init", None), "is not done: rows of new tokens begin around the mean of the others", "leave it out"
    ),
    **refused(
        (None,),
        "a file that others may read should hold no token",
        "leave it out: `hf auth login`, or HF_TOKEN; `swanlab login`, or SWANLAB_API_KEY",
        (
            "swanlab_api_key",
            "swanlab_lark_webhook_url",
            "swanlab_lark_secret",
            "hf_hub_token",
            "hub_token",
            "push_to_hub_token",
        ),
    ),
    **refused(
        (None,),
        "models come from the Hub of Hugging Face, or from a folder",
        "leave it out",
        ("ms_hub_token", "om_hub_token"),
    ),
    **refused((None,), "is not sent there", "set trackio_space_id", ("trackio_bucket_id", "trackio_static_space_id")),
    **refused(OFF, "is not done", "leave it out, and upload the folder: `hf upload NAME FOLDER`", ("push_to_hub",)),
}
