"""TRL's DPO, KTO, CPO and ORPO trainers on the same answers: losses and gradients of every loss that both have.

TRL gets tokens in place of texts and both models loaded; everything else it computes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_core.component import load_object
from gym_data.examples import Pair, UnpairedExample
from gym_preference import (
    CPO,
    DPO,
    EXO,
    IPO,
    KTO,
    LDDPO,
    MPO,
    NCA,
    ORPO,
    SPPO,
    APODown,
    APOZero,
    BCOPair,
    DiscoPOP,
    DPONorm,
    Hinge,
    PreferenceAlgorithm,
    RobustDPO,
    SimPO,
)
from gym_preference.objective import PreferenceObjective
from gym_preference.unpaired.mismatched_responses import MismatchedResponses
from gym_preference.unpaired.objective import UnpairedObjective
from gym_preference.unpaired.reference_point import MismatchedKL
from gym_preference.unpaired.samples_with_reference_point import with_reference_point
from gym_testkit import tiny
from gym_torch.batch import Example
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.reference import Scorer
from gym_torch.source import Step

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
#: TRL's CPO, and `sft` of its DPO, take the mean over all chosen tokens of a batch, which depends on how a step is cut.
EVEN = drawn((5, 9, 3, 6), (5, 5, 5, 5), (6, 1, 8, 5))
#: TRL's ORPO learns prompts too, but for the first token.
BARE = drawn((1, 1, 1, 1), (5, 5, 5, 5), (6, 1, 8, 5))
GOOD = [True, False, False, True]
SEED = 3  #: decides which answer is put to which prompt
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
    """Return TRL's loss of the chosen answers, some of which are good, and each is also put to another prompt."""
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
    others = [pairs.chosen[number] for number in MismatchedResponses(Listed(judged(pairs)), SEED).partners]
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


class Listed(list[UnpairedExample]):
    """Examples as data plugins have them."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(one.tokens) for one in self])


def judged(pairs: Pairs) -> list[UnpairedExample]:
    """Return the chosen answers as if they had been judged one by one."""
    rows = zip(pairs.prompts, pairs.chosen, GOOD, strict=True)
    return [
        UnpairedExample(str(n), np.array(prompt + answer, np.int32), mask(len(prompt), len(answer)), good)
        for n, (prompt, answer, good) in enumerate(rows)
    ]


def paired(pairs: Pairs) -> list[Pair]:
    """Return the pairs as gym-data does."""
    rows = zip(pairs.prompts, pairs.chosen, pairs.rejected, strict=True)
    return [
        Pair(
            str(n),
            np.array(prompt + chosen + rejected, np.int32),
            mask(len(prompt), len(chosen + rejected)),
            len(prompt),
            len(chosen),
        )
        for n, (prompt, chosen, rejected) in enumerate(rows)
    ]


def mask(read: int, learnt: int) -> np.ndarray:
    return np.arange(read + learnt) >= read


Peer = Callable[..., tuple[Tensor, nn.Module]]


@dataclass(frozen=True)
class Case:
    """One loss: what TRL calls it, and what it is here."""

    peer: Peer
    config: PreferenceAlgorithm
    asked: dict[str, Any] = field(default_factory=dict)
    pairs: Pairs = RAGGED


CASES = {
    "sigmoid": Case(dpo, DPO(beta=0.3), {"beta": 0.3}),
    "sigmoid_norm": Case(dpo, DPONorm(beta=5.0), {"loss_type": ["sigmoid_norm"], "beta": 5.0}),
    "ld_alpha": Case(dpo, LDDPO(ld_alpha=0.4), {"ld_alpha": 0.4}),
    "hinge": Case(dpo, Hinge(), {"loss_type": ["hinge"]}),
    "ipo": Case(dpo, IPO(), {"loss_type": ["ipo"]}),
    "robust": Case(dpo, RobustDPO(label_smoothing=0.2), {"loss_type": ["robust"], "label_smoothing": 0.2}),
    "exo_pair": Case(dpo, EXO(label_smoothing=0.05), {"loss_type": ["exo_pair"], "label_smoothing": 0.05}),
    "nca_pair": Case(dpo, NCA(), {"loss_type": ["nca_pair"]}),
    "bco_pair": Case(dpo, BCOPair(), {"loss_type": ["bco_pair"]}),
    "sppo_hard": Case(dpo, SPPO(), {"loss_type": ["sppo_hard"]}),
    "mpo": Case(
        dpo,
        MPO(beta=0.3, ftx=0.7),
        {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 0.7], "beta": 0.3},
        EVEN,
    ),
    "sums": Case(
        dpo,
        MPO(loss_weights={"hinge": 0.5, "nca": 1.5, "sppo": 0.1, "apo_zero": 2.0, "apo_down": 0.3}, ftx=0.0),
        {
            "loss_type": ["hinge", "nca_pair", "sppo_hard", "apo_zero", "apo_down"],
            "loss_weights": [0.5, 1.5, 0.1, 2.0, 0.3],
        },
    ),
    "apo_zero": Case(dpo, APOZero(), {"loss_type": ["apo_zero"]}),
    "apo_down": Case(dpo, APODown(), {"loss_type": ["apo_down"]}),
    "discopop": Case(dpo, DiscoPOP(), {"loss_type": ["discopop"]}),
    "kto": Case(
        kto,
        KTO(beta=0.2, desirable_weight=1.3, undesirable_weight=0.8),
        {"beta": 0.2, "desirable_weight": 1.3, "undesirable_weight": 0.8, "train_sampling_strategy": "sequential"},
    ),
    "simpo": Case(
        cpo, SimPO(beta=2.0, simpo_gamma=0.7), {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.7, "cpo_alpha": 0.0}
    ),
    "cpo": Case(cpo, CPO(ftx=1.0), {"loss_type": "sigmoid", "cpo_alpha": 1.0}, EVEN),
    "orpo": Case(orpo, ORPO(beta=0.2), {"beta": 0.2}, BARE),
}


def stepped(objective: PreferenceObjective, policy: Policy, case: Case, size: int) -> list[list[Example]]:
    """Return the samples of a step in batches of this size, measured from what they must be."""
    if not isinstance(objective, UnpairedObjective):
        every: list[Any] = paired(case.pairs)
        return [every[start : start + size] for start in range(0, len(every), size)]
    whole = Listed(judged(case.pairs))
    reference_point = MismatchedKL(whole, SEED)
    mismatched = [reference_point.measured[number] for number in range(len(whole))]
    device = torch.device("cpu")
    total = objective.total(Scorer(policy), Step([mismatched[:1], mismatched[1:]], 1.0), device)
    step = Step([whole[start : start + size] for start in range(0, len(whole), size)], 1.0)
    return list(with_reference_point(step, whole, reference_point.of(0, *total)).batches)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_agree_with_trl(path: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    wanted, other = case.peer(path, tmp_path, case.pairs, **case.asked)
    wanted.backward()
    gradients = [weight.grad.clone() for weight in other.parameters()]

    model, frozen = load(path, POLICY), load(path, REFERENCE)
    assert layout_for(model) is PACKED and layout_for(frozen) is PACKED
    objective = load_object(case.config.objective)(case.config, PACKED)
    policy = objective.policy(model)
    objective.reference = Scorer(Policy(frozen)) if case.peer in (dpo, kto) else None
    for size in (1, 3, 4):
        model.zero_grad()
        batches = [objective.collate(batch) for batch in stepped(objective, policy, case, size)]
        weight = sum(map(objective.weight, batches))
        loss = sum(objective.loss(policy, batch)[0] for batch in batches) / weight
        loss.backward()
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-4, abs=1e-6)
        for ours, theirs in zip(model.parameters(), gradients, strict=True):
            assert (ours.grad - theirs).norm() <= 1e-4 * theirs.norm()
            assert theirs.norm() > 0


def test_a_departure_is_tried_that_is_not_clamped(path: Path) -> None:
    """The comparison of KTO with TRL's would say little where both take 0."""
    model, frozen = load(path, POLICY), load(path, REFERENCE)
    assert layout_for(model) is PACKED and layout_for(frozen) is PACKED
    case = CASES["kto"]
    objective = UnpairedObjective(case.config, PACKED)
    objective.reference = Scorer(Policy(frozen))
    (first, *_), *_ = stepped(objective, Policy(model), case, 4)
    assert first.reference_point > 0.01
