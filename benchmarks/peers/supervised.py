"""One training run of one peer in a process of its own: `python benchmarks/peers/worker.py PEER SPEC`.

Prints a line of JSON: seconds, loss and gradient norm of every step, tokens, and the peak of the process's memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


@dataclass
class Spec:
    """What to run; the same for all peers but for how a step is cut."""

    model: str
    samples: str  #: `input_ids` and `labels`, a line each
    data: dict[str, Any]  #: the same samples as Gym reads them
    output: str
    steps: int
    rows: int  #: samples in a step; for rows that a peer packs, rows in a step
    accumulate: int = 1  #: passes in a step
    precision: str = "fp32"
    length: int = 0  #: tokens in a row that a peer packs
    learning_rate: float = 5e-4
    adapter: dict[str, Any] | None = None
    algorithm: Any = "sft"  #: as Gym's recipe has it; the peers know no other


@dataclass
class Result:
    """What came of it."""

    seconds: list[float]  #: of each step
    losses: list[float]
    norms: list[float]
    tokens: int  #: real tokens in all steps together, by the peer's own count
    base_bytes: int  #: memory of the process before the model was loaded
    peak_bytes: int

    def speed(self, skip: int) -> float:
        """Return real tokens a second, without the first steps, which warm up."""
        share = (len(self.seconds) - skip) / len(self.seconds)
        return self.tokens * share / sum(self.seconds[skip:])


def gym(spec: Spec) -> Result:
    """Train with Gym, through a recipe."""
    import gym_torch.trainer  # noqa: F401 - loaded before memory is measured, as the peers' modules are
    from gym_core import execute, load_recipe

    before = _memory()
    adapter = {"adapter": spec.adapter} if spec.adapter else {}
    recipe = {
        "model": spec.model,
        "data": spec.data,
        "algorithm": spec.algorithm,
        **adapter,
        "scheduler": "constant",
        "train": {
            "max_steps": spec.steps,
            "batch_size": spec.rows // spec.accumulate,
            "accumulate": spec.accumulate,
            "learning_rate": spec.learning_rate,
            "warmup": 0,
            "max_grad_norm": 1.0,
            "precision": spec.precision,
            "shuffle": False,
            "log_every": 1,
            "save_every": 1_000_000,
            "plot": False,
            "overwrite": True,
        },
        "output": spec.output,
    }
    outcome = execute(load_recipe(recipe))
    peak = _peak()
    lines = [json.loads(line) for line in (outcome.output / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in lines]
    each = [now - before for before, now in zip([0, *tokens], tokens, strict=False)]
    seconds = [count / line["tokens_per_second"] for count, line in zip(each, lines, strict=True)]
    losses, norms = ([line[key] for line in lines] for key in ("loss", "grad_norm"))
    return Result(seconds, losses, norms, tokens[-1], before, peak)


def trainer(spec: Spec) -> Result:
    """Train with the Trainer of transformers, padded to the longest sample of each batch."""
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    before = _memory()
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    clock = _clock()
    made = Trainer(
        model=_model(spec),
        args=TrainingArguments(**_arguments(spec), train_sampling_strategy="sequential", remove_unused_columns=False),
        train_dataset=_dataset(spec),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100),
        callbacks=[clock],
    )
    made.train()
    return clock.result(_real_tokens(spec), before)


def trl(spec: Spec) -> Result:
    """Train with TRL's SFTTrainer, packed to rows of `length` tokens."""
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    before = _memory()
    clock = _clock()
    packing = {"packing": True, "max_length": spec.length} if spec.length else {"max_length": None}
    made = SFTTrainer(
        model=_model(spec),
        args=SFTConfig(**_arguments(spec), **packing, dataset_num_proc=1),
        train_dataset=_dataset(spec),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[clock],
    )
    made.train()
    return clock.result(int(made.state.num_input_tokens_seen), before)


def _model(spec: Spec) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    if spec.adapter:
        from peft import LoraConfig, get_peft_model

        options = LoraConfig(r=spec.adapter["rank"], lora_alpha=2 * spec.adapter["rank"], target_modules="all-linear")
        model = get_peft_model(model, options)
    return model


def _dataset(spec: Spec) -> Any:
    from datasets import Dataset

    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines])


def _real_tokens(spec: Spec) -> int:
    lines = Path(spec.samples).read_text(encoding="utf-8").splitlines()[: spec.steps * spec.rows]
    return sum(len(json.loads(line)["input_ids"]) for line in lines)


def _arguments(spec: Spec) -> dict[str, Any]:
    return {
        "output_dir": spec.output,
        "max_steps": spec.steps,
        "per_device_train_batch_size": spec.rows // spec.accumulate,
        "gradient_accumulation_steps": spec.accumulate,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": spec.precision == "bf16",
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
        "include_num_input_tokens_seen": "non_padding",
        "disable_tqdm": True,
    }


def _clock() -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.logs: list[dict[str, float]] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                self.logs.append(logs)

        def result(self, tokens: int, before: int) -> Result:
            losses, norms = ([float(log[key]) for log in self.logs] for key in ("loss", "grad_norm"))
            return Result(self.seconds, losses, norms, tokens, before, _peak())

    return Clock()


def _memory() -> int:
    """Return the bytes that the process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PEERS: dict[str, Callable[[Spec], Result]] = {"gym": gym, "trainer": trainer, "trl": trl}

if __name__ == "__main__":
    spoken = os.dup(1)
    os.dup2(2, 1)  # whatever the peers print goes to the standard error
    found = PEERS[sys.argv[1]](Spec(**json.loads(sys.argv[2])))
    os.write(spoken, (json.dumps(asdict(found)) + "\n").encode())
