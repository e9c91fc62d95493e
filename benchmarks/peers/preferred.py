"""One run of DPO with LoRA of one peer in a process of its own: seconds, loss and gradient norm of every step, and memory.

The reference is the model without the adapter. Both begin with the same adapter, so both train the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from peers.process import Result, Spec, arguments, clock, executed, held, peak, schedule, serve

RANK, BETA = 8, 0.1


@dataclass(kw_only=True)
class Preferred(Result):
    """What came of it."""

    pairs: int  #: in a step

    def speed(self, skip: int) -> float:
        """Return pairs a second, without the first steps, which warm up."""
        return self.pairs * len(self.seconds[skip:]) / sum(self.seconds[skip:])


@dataclass(kw_only=True)
class Preferring(Spec):
    """Pairs and how to train on them."""

    result: ClassVar[type[Result]] = Preferred

    data: dict[str, Any]  #: pairs, as Gym reads them
    pairs: str  #: the same for the peer: `prompt_ids`, `chosen_ids` and `rejected_ids`, a line each


def gym(spec: Preferring) -> Preferred:
    """Train with Gym, through a recipe."""
    import gym_preference.pairwise.objective  # noqa: F401 - loaded before memory is measured, as the peer's modules are
    import gym_torch.assembly  # noqa: F401

    before = held()
    method = {"algorithm": {"name": "dpo", "beta": BETA}, "adapter": {"name": "lora", "rank": RANK}}
    found, _ = executed({"model": spec.model, "data": spec.data, **method, **schedule(spec)})
    return Preferred(**found, base_bytes=before, pairs=spec.rows)


def trl(spec: Preferring) -> Preferred:
    """Train with TRL's DPOTrainer on pairs that are tokens already."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, set_peft_model_state_dict
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from gym_adapters import LoRA

    class Tokenized(DPOTrainer):
        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

    def model() -> Any:
        return AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)

    drawn = LoRA(rank=RANK).build(model=model(), seed=0).state()  # as Gym draws it
    before = held()
    steps = clock(spec)
    settings = DPOConfig(**arguments(spec), beta=BETA, max_length=None, train_sampling_strategy="sequential")
    made = Tokenized(
        model=model(),
        args=settings,
        train_dataset=Dataset.from_list([json.loads(line) for line in Path(spec.pairs).read_text().splitlines()]),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        peft_config=LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[steps],
    )
    set_peft_model_state_dict(made.model, drawn)
    made.train()
    return Preferred(**steps.found(), base_bytes=before, peak_bytes=peak(), pairs=spec.rows)


if __name__ == "__main__":
    serve({"gym": gym, "trl": trl}, Preferring)
