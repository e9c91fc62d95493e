"""TRL's DPO, KTO, CPO and ORPO trainers on the same answers: losses and gradients of every loss that both have.

TRL gets tokens in place of texts and both models loaded; everything else it computes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_testkit import tiny

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
torch.set_num_threads(1)
POLICY, REFERENCE = 1, 2  #: seeds of the policy that learns and of what it is compared with
Answers = list[list[int]]


@dataclass(frozen=True)
class Pairs:
    """Token ids: prompts, and a chosen and a rejected answer to each."""

    prompts: Answers
    chosen: Answers
    rejected: Answers


def drawn(prompts: Sequence[int], chosen: Sequence[int], rejected: Sequence[int]) -> Pairs:
    """Return pairs of these lengths."""
    random = np.random.default_rng(0)
    return Pairs(*([random.integers(3, 60, size).tolist() for size in sizes] for sizes in (prompts, chosen, rejected)))


RAGGED = drawn((5, 9, 3, 6), (4, 7, 2, 5), (6, 1, 8, 5))
#: TRL's CPO takes the mean of the log-likelihood over all chosen tokens of a batch, which depends on how a step is cut.
EVEN = drawn((5, 9, 3, 6), (5, 5, 5, 5), (6, 1, 8, 5))
#: TRL's ORPO learns prompts too, but for the first token.
BARE = drawn((1, 1, 1, 1), (5, 5, 5, 5), (6, 1, 8, 5))
GOOD = [True, False, False, True]
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": len(GOOD),
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "report_to": "none",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("trl") / "model", 0)


def load(path: Path, seed: int) -> nn.Module:
    """Return a model near the one of the folder."""
    found = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in found.parameters():
            weight += 0.1 * weight.std() * torch.randn_like(weight)
    return found


def made(trainer: type, config: type, path: Path, output: Path, rows: list[dict[str, Any]], **asked: Any) -> Any:
    """Return a trainer of TRL over the policy; the rows are only there to be tokenized at its birth."""
    from datasets import Dataset

    reference = {"ref_model": load(path, REFERENCE)} if "ref_model" in trainer.__init__.__annotations__ else {}
    return trainer(
        model=load(path, POLICY),
        args=config(output_dir=str(output), **COMMON, **asked),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(path),
        **reference,
    )


def dpo(path: Path, output: Path, pairs: Pairs, **asked: Any) -> tuple[Tensor, nn.Module]:
    """Return TRL's loss of these pairs, and the policy that it is a function of."""
    from trl import DPOConfig, DPOTrainer

    peer = made(DPOTrainer, DPOConfig, path, output, [{"prompt": "a", "chosen": "b", "rejected": "c"}], **asked)
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = zip(pairs.prompts, pairs.chosen, pairs.rejected, strict=True)
    inputs = peer.data_collator([dict(zip(names, row, strict=True)) for row in rows])
    return peer._compute_loss(peer.model, inputs, return_outputs=False), peer.model


def kto(path: Path, output: Path, pairs: Pairs, **asked: Any) -> tuple[Tensor, nn.Module]:
    """Return TRL's loss of the chosen answers, some of which are good; each prompt also gets the answer to the one before."""
    from trl import KTOConfig, KTOTrainer

    peer = made(
        KTOTrainer,
        KTOConfig,
        path,
        output,
        [{"prompt": "a", "completion": "b", "label": good} for good in GOOD],
        **asked,
    )
    names = ("prompt_ids", "completion_ids", "KL_completion_ids", "label")
    others = pairs.chosen[-1:] + pairs.chosen[:-1]
    rows = zip(pairs.prompts, pairs.chosen, others, GOOD, strict=True)
    inputs = peer.data_collator([dict(zip(names, row, strict=True)) for row in rows])
    return peer._compute_loss(peer.model, inputs, return_outputs=False), peer.model


def without_reference(
    trainer: type, config: type, path: Path, output: Path, pairs: Pairs, **asked: Any
) -> tuple[Tensor, nn.Module]:
    """Return the loss of one of TRL's trainers that need no reference."""
    peer = made(trainer, config, path, output, [{"prompt": "a", "chosen": "b", "rejected": "c"}], **asked)
    rows = []
    for prompt, *answers in zip(pairs.prompts, pairs.chosen, pairs.rejected, strict=True):
        row: dict[str, Any] = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
        for side, answer in zip(("chosen", "rejected"), answers, strict=True):
            row[f"{side}_input_ids"] = prompt + answer
            row[f"{side}_attention_mask"] = [1] * len(prompt + answer)
            row[f"{side}_labels"] = [-100] * len(prompt) + answer
        rows.append(row)
    loss, _ = peer.get_batch_loss_metrics(peer.model, peer.data_collator(rows))
    return loss, peer.model


def cpo(path: Path, output: Path, pairs: Pairs, **asked: Any) -> tuple[Tensor, nn.Module]:
    """Return the loss of TRL's CPOTrainer, which also has SimPO."""
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    return without_reference(CPOTrainer, CPOConfig, path, output, pairs, **asked)


def orpo(path: Path, output: Path, pairs: Pairs, **asked: Any) -> tuple[Tensor, nn.Module]:
    """Return the loss of TRL's ORPOTrainer."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    return without_reference(ORPOTrainer, ORPOConfig, path, output, pairs, **asked)
