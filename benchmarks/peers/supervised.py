"""One supervised training run of one peer in a process of its own: seconds, loss and gradient norm of every step, and memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from peers.process import Result, Spec, arguments, clock, executed, held, peak, schedule, serve


@dataclass(kw_only=True)
class Tuned(Result):
    """What came of it."""

    tokens: list[float]  #: real tokens of each step; the mean of all where a peer counts them together

    def speed(self, skip: int) -> float:
        """Return real tokens a second, without the first steps, which warm up."""
        return sum(self.tokens[skip:]) / sum(self.seconds[skip:])


@dataclass(kw_only=True)
class Tuning(Spec):
    """Samples and how to train on them."""

    result: ClassVar[type[Result]] = Tuned

    data: dict[str, Any]  #: samples, as Gym reads them
    samples: str = ""  #: the same for the peers: `input_ids` and `labels`, a line each
    length: int = 0  #: tokens in a row that a peer packs
    adapter: dict[str, Any] | None = None
    recompute: bool | str = False  #: as Gym's `train.gradient_checkpointing` has it; the peers know yes and no
    algorithm: Any = "sft"  #: as Gym's recipe has it; the peers know no other
    half: bool = False  #: whether the peers hold frozen weights in bf16, as Gym does where they are stored so
    quantized: bool = False  #: whether the frozen weights are held in 4 bits (NF4)
    sharing: int = 1  #: processes that share the tokens of each row
    kernels: list[str] = field(default_factory=list)  #: libraries that Gym tries
    compiled: bool = False  #: whether Gym compiles its layers
    fp8: str | None = None  #: as Gym's `model.fp8` has it
    flash: bool = False  #: whether the peers attend by FlashAttention-2
    folder: str = ""  #: where LLaMA-Factory finds its data
    dataset: str = ""  #: how it is called there


def gym(spec: Tuning) -> Tuned:
    """Train with Gym, through a recipe."""
    import gym_torch.assembly  # noqa: F401 - loaded before memory is measured, as the peers' modules are

    before = held()
    found, tokens = executed(recipe_of(spec))
    each = [float(after - begun) for begun, after in zip([0, *tokens], tokens, strict=False)]
    return Tuned(**found, tokens=each, base_bytes=before)


def recipe_of(spec: Tuning) -> dict[str, Any]:
    """Return the recipe of Gym."""
    adapter = {"adapter": spec.adapter} if spec.adapter else {}
    model: dict[str, Any] = {"path": spec.model, "kernels": spec.kernels, "fp8": spec.fp8}
    if spec.compiled:
        model["compile"] = True
    if spec.quantized:
        model["quantization"] = "bnb_4bit"
    recipe = {"model": model, "data": spec.data, "algorithm": spec.algorithm, **adapter, **schedule(spec)}
    recipe["train"]["gradient_checkpointing"] = spec.recompute
    recipe["distributed"] = {"name": "ddp", "context_parallel_size": spec.sharing}
    return recipe


def trainer(spec: Tuning) -> Tuned:
    """Train with the Trainer of transformers, padded to the longest sample of each batch."""
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    before = held()
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    steps = clock(spec)
    made = Trainer(
        model=_model(spec),
        args=TrainingArguments(**_arguments(spec), train_sampling_strategy="sequential", remove_unused_columns=False),
        train_dataset=_dataset(spec),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100),
        callbacks=[steps],
    )
    made.train()
    return Tuned(**steps.found(), tokens=_real_tokens(spec), base_bytes=before, peak_bytes=peak())


def trl(spec: Tuning) -> Tuned:
    """Train with TRL's SFTTrainer, packed to rows of `length` tokens."""
    before = held()
    steps = clock(spec)
    packing = {"packing": True, "max_length": spec.length} if spec.length else {"max_length": None}
    return _trained(spec, _model(spec), packing, before, steps)


def llamafactory(spec: Tuning) -> Tuned:
    """Train with LLaMA-Factory, at its best."""
    from llamafactory.train.tuner import run_exp

    from peers.sizes import of_llamafactory

    way = "qlora" if spec.quantized else "lora" if spec.adapter else "full"
    before, steps = held(), clock(spec)
    where = spec.model, spec.folder, spec.dataset, way, spec.output
    run_exp(of_llamafactory(*where, spec.steps, spec.rows, spec.length, bool(spec.recompute)), callbacks=[steps])
    tokens = int(steps.logs[-1]["num_input_tokens_seen"])
    return Tuned(**steps.found(), tokens=_evenly(tokens, spec), base_bytes=before, peak_bytes=peak())


def unsloth(spec: Tuning) -> Tuned:
    """Train with unsloth, which replaces parts of TRL's SFTTrainer; packed."""
    from unsloth import FastLanguageModel  # before transformers, which it changes

    before, steps = held(), clock(spec)
    model, _ = FastLanguageModel.from_pretrained(
        spec.model, max_seq_length=spec.length, load_in_4bit=spec.quantized, full_finetuning=not spec.adapter
    )
    if spec.adapter:
        rank = spec.adapter["rank"]
        model = FastLanguageModel.get_peft_model(
            model, r=rank, lora_alpha=2 * rank, lora_dropout=0, use_gradient_checkpointing=bool(spec.recompute)
        )
    return _trained(spec, model, {"packing": True, "max_length": spec.length}, before, steps)


def _trained(spec: Tuning, model: Any, packing: dict[str, Any], before: int, steps: Any) -> Tuned:
    """Train a model with TRL's SFTTrainer."""
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    made = SFTTrainer(
        model=model,
        args=SFTConfig(**_arguments(spec), **packing, dataset_num_proc=1),
        train_dataset=_dataset(spec),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[steps],
    )
    made.train()
    tokens = int(made.state.num_input_tokens_seen)
    return Tuned(**steps.found(), tokens=_evenly(tokens, spec), base_bytes=before, peak_bytes=peak())


def _model(spec: Tuning) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    more: dict[str, Any] = {"attn_implementation": "flash_attention_2"} if spec.flash else {}
    if spec.quantized:
        from transformers import BitsAndBytesConfig

        half = torch.bfloat16
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=half
        )
    dtype = torch.bfloat16 if spec.half else torch.float32
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=dtype, **more)
    if spec.adapter:
        from peft import LoraConfig, get_peft_model

        options = LoraConfig(r=spec.adapter["rank"], lora_alpha=2 * spec.adapter["rank"], target_modules="all-linear")
        model = get_peft_model(model, options)
    return model


def _dataset(spec: Tuning) -> Any:
    from datasets import Dataset

    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines])


def _real_tokens(spec: Tuning) -> list[float]:
    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()[: spec.steps * spec.rows]
    lengths = [len(json.loads(line)["input_ids"]) for line in lines]
    return [float(sum(lengths[at : at + spec.rows])) for at in range(0, len(lengths), spec.rows)]


def _evenly(tokens: int, spec: Tuning) -> list[float]:
    """Return so many tokens for each step: rows that are packed are all about as full."""
    return [tokens / spec.steps] * spec.steps


def _arguments(spec: Tuning) -> dict[str, Any]:
    more = {"include_num_input_tokens_seen": "non_padding", "gradient_checkpointing": bool(spec.recompute)}
    return arguments(spec) | more


if __name__ == "__main__":
    peers = {"gym": gym, "trainer": trainer, "trl": trl, "llamafactory": llamafactory, "unsloth": unsloth}
    serve(peers, Tuning)
