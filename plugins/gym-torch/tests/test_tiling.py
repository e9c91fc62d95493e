"""Rows computed in slices, and inputs of layers kept on the disk: the same loss and gradients, in less memory."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import Crash, Event, NextToken, make_run, same, samples, train, weights
from gym_torch_plans import EXPERTS, QWEN
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import packed
from gym_torch.memory import tiling
from gym_torch.memory.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.memory.offloading import away
from gym_torch.model.log_probs import declared_head
from gym_torch.policy import Policy

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
GPT2 |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
away(torch.zeros(1000))
"""
#: Parts of these are given `[tokens, dim]`.
SHARED_EXPERT = EXPERTS | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 3,
}
OPT = {"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96, "vocab_size": 1000}
OPT |= {"num_hidden_layers": 3, "num_attention_heads": 4, "dropout": 0.0}
GEMMA = QWEN | {"model_type": "gemma2", "num_hidden_layers": 3}


def model_of(config: dict[str, Any], policy: Any, attention: str = NAME) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = AutoConfig.for_model(**config)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation=attention)
    recompute_layers(model.train(), policy)
    return model


def gradients(model: PreTrainedModel) -> list[Tensor]:
    batch = packed([samples(6)[number] for number in range(6)])
    loss, _ = NextToken(None).loss(Policy(model, head=declared_head(model)), batch)
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have slices of five tokens."""
    monkeypatch.setattr(tiling.tile, "__defaults__", (5,))


@pytest.mark.parametrize(
    ("config", "parts"), [(QWEN, 5), (GEMMA, 5), (GPT2, 3), (EXPERTS, 4), (SHARED_EXPERT, 3), (OPT, 2)]
)
@pytest.mark.parametrize("policy", ["tiled", "offload"])
@pytest.mark.usefixtures("small")
def test_slices_of_a_row_give_its_loss_and_gradients(config: dict[str, Any], parts: int, policy: str) -> None:
    expected = gradients(model_of(config, False))
    model = model_of(config, policy)
    sliced = [part for part in recomputable(model)[-1].modules() if "whole_forward" in vars(part)]
    assert len(sliced) == parts
    for found, plain in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=5e-6)
    assert len(expected) > 10


@pytest.mark.usefixtures("small")
def test_a_copy_of_a_layer_computes_with_its_own_weights() -> None:
    model = model_of(QWEN, "tiled")
    recompute_layers(model, "tiled")  # once more changes nothing
    layer = recomputable(model)[0]
    copied, row = copy.deepcopy(layer), torch.randn(1, 12, 64)
    with torch.no_grad():
        before = layer.mlp(row)
        for weight in copied.parameters():
            weight.zero_()
        assert torch.equal(layer.mlp(row), before) and not copied.mlp(row).any()


@pytest.mark.usefixtures("small")
def test_a_run_stopped_and_resumed_is_the_same_run(model_path: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_every": 2, "max_steps": 4, "gradient_checkpointing": "offload"}
    train(make_run(model_path, tmp_path / "whole", **settings))
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path / "cut", sections={"callbacks": (Event(step=3),)}, **settings))
    train(make_run(model_path, tmp_path / "cut", **settings))
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_away_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    kept = torch.randn(2, 3, 5).to(dtype).transpose(0, 1)
    back = away(kept)
    assert torch.equal(back(), kept) and torch.equal(back(), kept) and back().dtype is dtype


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    """The most that a file may hold stands for a disk that has no more room."""
    script = f"import resource, signal, torch\nfrom gym_torch.memory.offloading import away\n{FULL}"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(tmp_path)}, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert "cannot be put on the disk" in done.stderr and str(tmp_path) in done.stderr and "TMPDIR" in done.stderr


FREED = """
import psutil, sys, torch
from gym_torch.memory.malloc import give_back_freed
own = psutil.Process().memory_info
if sys.argv[1] == "yes":
    give_back_freed()
before, kept = own().rss, []
for _ in range(50):
    between = torch.ones(4, 2**20)
    kept.append(torch.ones(2**19))
    del between
print((own().rss - before - 50 * 2**21) / 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere nothing is asked of the allocator")
def test_freed_memory_is_given_back() -> None:
    """Between blocks that stay: what remains resident beside them, in MiB."""
    found = {}
    for asked in ("yes", "no"):
        done = subprocess.run([sys.executable, "-c", FREED, asked], capture_output=True, text=True, check=True)
        found[asked] = float(done.stdout)
    assert found["yes"] < 10 < found["no"]
