"""One supervised training run of one peer in a process of its own: seconds, loss and gradient norm of every step, and memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from peers.process import Result, Spec, arguments, clock, executed, held, peak, schedule, serve


@dataclass(kw_only=True)
class Tuned(Result):
    """What came of it."""

    tokens: int  #: real tokens in all steps together, by the peer's own count

    def speed(self, skip: int) -> float:
        """Return real tokens a second, without the first steps, which warm up."""
        share = (len(self.seconds) - skip) / len(self.seconds)
        return self.tokens * share / sum(self.seconds[skip:])


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


def gym(spec: Tuning) -> Tuned:
    """Train with Gym, through a recipe."""
    import gym_torch.assembly  # noqa: F401 - loaded before memory is measured, as the peers' modules are

    before = held()
    adapter = {"adapter": spec.adapter} if spec.adapter else {}
    recipe = {"model": spec.model, "data": spec.data, "algorithm": spec.algorithm, **adapter, **schedule(spec)}
    recipe["train"]["gradient_checkpointing"] = spec.recompute
    found, tokens = executed(recipe)
    return Tuned(**found, tokens=tokens[-1], base_bytes=before)


def trainer(spec: Tuning) -> Tuned:
    """Train with the Trainer of transformers, padded to the longest sample of each batch."""
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    before = held()
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    steps = clock()
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
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    before = held()
    steps = clock()
    packing = {"packing": True, "max_length": spec.length} if spec.length else {"max_length": None}
    made = SFTTrainer(
        model=_model(spec),
        args=SFTConfig(**_arguments(spec), **packing, dataset_num_proc=1),
        train_dataset=_dataset(spec),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[steps],
    )
    made.train()
    tokens = int(made.state.num_input_tokens_seen)
    return Tuned(**steps.found(), tokens=tokens, base_bytes=before, peak_bytes=peak())


def _model(spec: Tuning) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    if spec.adapter:
        from peft import LoraConfig, get_peft_model

        options = LoraConfig(r=spec.adapter["rank"], lora_alpha=2 * spec.adapter["rank"], target_modules="all-linear")
        model = get_peft_model(model, options)
    return model


def _dataset(spec: Tuning) -> Any:
    from datasets import Dataset

    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines])


def _real_tokens(spec: Tuning) -> int:
    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()[: spec.steps * spec.rows]
    return sum(len(json.loads(line)["input_ids"]) for line in lines)


def _arguments(spec: Tuning) -> dict[str, Any]:
    more = {"include_num_input_tokens_seen": "non_padding", "gradient_checkpointing": bool(spec.recompute)}
    return arguments(spec) | more


if __name__ == "__main__":
    serve({"gym": gym, "trainer": trainer, "trl": trl}, Tuning)
