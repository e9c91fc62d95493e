"""Every adapter with every optimizer: what is saved and opened elsewhere goes on with the same bits, or is refused by name."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_bench import ADAPTERS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError
from gym_core.discovery import entries
from gym_core.loading import load
from gym_optim.kinds import Optimizer
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench
from gym_torch.batch import Piece, padded
from gym_torch.distributed.optimizer_state import put, take
from gym_torch.kinds import Adapter
from gym_torch.loop.checks import check_gradients_stay
from gym_torch.model.parameter_groups import groups_of
from gym_torch.trained_part import FirstStepBatch

KINDS: dict[str, type[Adapter]] = {entry.name: load(entry) for entry in entries("adapters")}
OPTIMIZERS: dict[str, type[Optimizer]] = {
    entry.name: kind for entry in entries("optimizers") if not (kind := load(entry)).device
}
BRIEF = {
    "rank": 4,
    **dict.fromkeys(("update_proj_gap", "precondition_frequency", "interval_steps", "switch_interval"), 2),
    "min_8bit_size": 256,
    "activated_layers": 1,
}  #: what makes each do all it can do in a few steps
TOKENS = torch.arange(32).view(2, 16) * 7 % 128
STEPS = 5
#: Layers of each shape: as wide as high, high, and wide.
FEW = {"target_modules": "q_proj,up_proj,down_proj"}
NOT_LORA = (
    *("full", "freeze", "llama_pro", "loha", "lokr", "vera", "oft", "boft", "ia3", "ln_tuning"),
    *("trainable_tokens", "prompt_tuning", "prefix_tuning"),
)
REFUSED = {
    *((adapter, optimizer) for adapter in NOT_LORA for optimizer in ("lora_plus", "lora_pro")),
    ("adalora", "lora_pro"),  # it has a third factor
    ("expert_lora", "lora_pro"),  # its two matrices hold the factors of all experts
    # nothing is in a layer
    *((adapter, "badam") for adapter in ("trainable_tokens", "prompt_tuning", "prefix_tuning")),
    *(("adalora", optimizer) for optimizer in ("lomo", "adalomo", "lisa", "badam")),  # they leave no gradients to weigh
}
#: All of them; in every run each adapter with a third of the optimizers, and each optimizer with a third of the adapters.
PAIRS = [
    pytest.param(adapter, optimizer, marks=[pytest.mark.slow] * bool((row + column) % 3))
    for row, adapter in enumerate(ADAPTERS)
    for column, optimizer in enumerate(OPTIMIZERS)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, PreTrainedModel]:
    """Return a model without experts, and one with them."""
    folder = tmp_path_factory.mktemp("models")
    dense = Path(Bench(folder).model())
    paths = {False: dense, True: write_mixture(folder / "mixture", dense)}
    return {key: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for key, path in paths.items()}


class Run:
    """What a run is made of, as its checkpoint sees it."""

    def __init__(self, base: PreTrainedModel, adapter: str, optimizer: str, seed: int) -> None:
        given, kind = ADAPTERS[adapter], OPTIMIZERS[optimizer]
        layers = FEW if "rank" in given and "target_modules" in KINDS[adapter].model_fields else {}
        self.options = KINDS[adapter](**layers | given)
        self.base = base.name_or_path
        self.adapted: Any = self.options.build(model=deepcopy(base), seed=seed)
        self.optimizer: Any = None
        self.brief = kind(**{name: value for name, value in BRIEF.items() if name in kind.model_fields})

    def begin(self) -> None:
        """Find first values."""
        pieces = [Piece(str(number), row.int().numpy(), (row >= 0).numpy()) for number, row in enumerate(TOKENS)]
        self.adapted.initialize([FirstStepBatch(padded(pieces), self.loss)])

    def optimize(self) -> None:
        """Make the optimizer, as a run does before its first step."""
        groups = groups_of(self.adapted.model)
        self.optimizer = self.brief.build(parameters=groups, learning_rate=1e-3)
        if self.options.needs_gradients:
            check_gradients_stay(not self.brief.keeps_gradients(), False)

    def loss(self) -> torch.Tensor:
        found: torch.Tensor = self.adapted.model(input_ids=TOKENS, labels=TOKENS).loss
        return found

    def train(self, steps: range) -> None:
        self.adapted.model.train()
        for step in steps:
            # dropout; the seeds of other devices would be queued in every step
            torch.default_generator.manual_seed(step)
            (self.loss() + self.adapted.penalty()).backward()
            self.optimizer.step()
            self.adapted.after_step(step + 1, STEPS)
            self.optimizer.zero_grad()

    def write(self, path: Path) -> None:
        self.adapted.save(path, self.base, exact=True)
        tensors, plain = take(self.optimizer, self.adapted.model, lambda tensor: tensor.detach().clone().contiguous())
        save_file(tensors, path / "state-of-optimizer")
        (path / "state.json").write_text(json.dumps(plain))

    def read(self, path: Path) -> None:
        self.adapted.load(self.adapted.read(path))
        self.optimize()
        tensors, plain = load_file(path / "state-of-optimizer"), json.loads((path / "state.json").read_text())
        put(self.optimizer, self.adapted.model, tensors, plain, lambda tensor, parameter: tensor)


@pytest.mark.proves("soap")
@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(("adapter", "optimizer"), PAIRS)
def test_a_pair_goes_on_bit_for_bit(
    adapter: str, optimizer: str, models: dict[bool, PreTrainedModel], tmp_path: Path
) -> None:
    base = models[adapter == "expert_lora"]
    one, other = (Run(base, adapter, optimizer, seed) for seed in (0, 1))
    one.begin()
    if (adapter, optimizer) in REFUSED:
        with pytest.raises(
            GymError, match=r"finds no LoRA adapter|leaves no gradients|finds no layer|stands outside the layers"
        ):
            one.optimize()
        return
    one.optimize()
    one.train(range(3))
    one.write(tmp_path / "saved")
    other.read(tmp_path / "saved")
    for run in (one, other):
        run.train(range(3, STEPS))
    found, expected = other.adapted.state(), one.adapted.state()
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
