"""A file trains as a plain loop over its ids and labels does, with a model of transformers and torch's AdamW."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from gym_core import execute, load_recipe
from gym_testkit.bench import Bench

ROWS = [{"instruction": f"Count to {n}.", "input": "Slowly." * (n % 2), "output": "one, " * n} for n in range(1, 5)]
KEYS = {
    "stage": "sft", "do_train": True, "finetuning_type": "full", "template": "qwen", "cutoff_len": 64, "learning_rate": 1e-3,
    "num_train_epochs": 3, "lr_scheduler_type": "constant", "per_device_train_batch_size": 4, "logging_steps": 1,
    "plot_loss": False, "save_only_model": True, "report_to": "none", "ddp_timeout": 180000000, "fp16": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "weigh"),
    [({}, torch.ones_like), ({"use_dft_loss": True}, lambda surprise: (-surprise).exp())],
    ids=["sft", "dft"],
)
def test_three_steps_have_the_losses_of_a_plain_loop(
    bench: Bench, more: dict[str, Any], weigh: Callable[[Tensor], Tensor]
) -> None:
    bench.path("rows.json").write_text(json.dumps(ROWS))
    bench.path("dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    files = {"model_name_or_path": str(bench.model()), "dataset": "rows", "dataset_dir": str(bench.root)}
    recipe = load_recipe(KEYS | files | more | {"output_dir": str(bench.root / "out")})
    assert recipe.data is not None
    batch = list(recipe.data.build(tokenizer=bench.model(), rows="conversation", seed=0).train)
    lines = [json.loads(line) for line in (execute(recipe).output / "metrics.jsonl").read_text().splitlines()]

    model = AutoModelForCausalLM.from_pretrained(bench.model(), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    assert len(batch) == 4 and len(lines) == 3
    for line in lines:
        surprises = []
        for example in batch:
            ids, learnt = torch.tensor(example.tokens.tolist()), torch.tensor(example.trained.tolist())[1:]
            logits = model(input_ids=ids[None]).logits[0, :-1]
            surprises.append(torch.nn.functional.cross_entropy(logits[learnt], ids[1:][learnt], reduction="none"))
        every = torch.cat(surprises)
        loss = (weigh(every.detach()) * every).mean()
        assert line["loss"] == pytest.approx(loss.item(), abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
