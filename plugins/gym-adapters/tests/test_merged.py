"""Adapters that can be merged: unchanged at first, only what they declare trains, and merged and restored they are the same."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_adapters import BOFT, IA3, OFT, LNTuning, LoHa, LoKr, LongLoRA, LoRA, TrainableTokens, VeRA
from gym_core import GymError
from gym_testkit import families
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.kinds import Adapter
from gym_torch.model.adapted import AdaptedModel

KINDS: dict[str, Adapter] = {
    "loha": LoHa(rank=3),
    "loha+extra": LoHa(rank=2, alpha=5, target_modules="q_proj,mlp.up_proj", modules_to_save="embed_tokens"),
    "lokr": LoKr(rank=2),
    "vera": VeRA(rank=6),
    "oft": OFT(block_size=8),
    "oft exact": OFT(block_size=4, exact=True, modules_to_save="lm_head"),
    "boft": BOFT(block_size=4, n_butterfly_factor=2),
    "boft one": BOFT(block_size=8, n_butterfly_factor=1, target_modules="v_proj,down_proj"),
    "boft three": BOFT(block_size=2, n_butterfly_factor=3),
    "ia3": IA3(),
    "ln_tuning": LNTuning(),
    "trainable_tokens": TrainableTokens(tokens=(5, 9, 2)),
    "longlora": LongLoRA(rank=3, groups=2),
}


def built(bench: Any, config: Adapter, **options: Any) -> AdaptedModel:
    adapted: AdaptedModel = config.build(model=bench.base(**options), seed=0)
    return adapted


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def config(request: pytest.FixtureRequest) -> Adapter:
    found: Adapter = request.param
    return found


@pytest.fixture(scope="module")
def trained(config: Adapter, bench: Any) -> AdaptedModel:
    """Return an adapter that learned, which no test changes."""
    torch.manual_seed(0)
    adapted = built(bench, config)
    bench.train(adapted.model)
    return adapted


@pytest.mark.proves("boft", "ia3", "loha", "lokr", "oft", "vera")
def test_it_begins_unchanged_and_only_what_it_declares_trains(bench: Any, config: Adapter) -> None:
    adapted = built(bench, config)
    assert float((bench.logits(adapted.model) - bench.logits(bench.base())).abs().max()) <= 1e-5
    start = {name: weight.detach().clone() for name, weight in adapted.model.named_parameters()}
    marked = {name for name, weight in adapted.model.named_parameters() if weight.requires_grad}
    bench.train(adapted.model)
    moved = {name for name, weight in adapted.model.named_parameters() if not torch.equal(weight, start[name])}
    assert moved and moved <= marked
    assert sum(start[name].numel() for name in marked) == sum(weight.numel() for weight in adapted.state().values())
    assert all(weight.dtype == torch.float32 for weight in adapted.state().values())


def test_it_is_built_and_merged_without_a_warning(bench: Any, config: Adapter) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        built(bench, config).merged()


@pytest.mark.proves("ln_tuning")
def test_left_out_it_leaves_the_base(bench: Any, trained: AdaptedModel) -> None:
    expected = bench.logits(trained.model)
    assert float((expected - bench.logits(bench.base())).abs().max()) > 1e-3
    assert trained.disable_adapter is not None
    with trained.disable_adapter():
        assert float((bench.logits(trained.model) - bench.logits(bench.base())).abs().max()) <= 1e-6
    assert torch.equal(bench.logits(trained.model), expected)


@pytest.mark.proves("boft", "loha", "lokr")
def test_merged_computes_the_same_and_is_plain(bench: Any, trained: AdaptedModel, tmp_path: Path) -> None:
    before = bench.logits(trained.model)
    merged = trained.merged()
    assert float((bench.logits(merged) - before).abs().max()) <= 1e-5 * max(1.0, float(before.abs().max()))
    assert torch.equal(bench.logits(trained.model), before)
    # tied ones may have come apart
    names = {name.replace("lm_head.weight", "") for name, _ in merged.named_parameters()}
    assert names | {""} == {name.replace("lm_head.weight", "") for name, _ in bench.base().named_parameters()} | {""}
    assert merged.config._attn_implementation == bench.base().config._attn_implementation
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(bench.logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")), bench.logits(merged))


@pytest.mark.proves("ia3", "ln_tuning", "loha", "lokr", "oft", "trainable_tokens", "vera")
def test_plain_peft_loads_it(bench: Any, trained: AdaptedModel, config: Adapter, tmp_path: Path) -> None:
    artifact = trained.save(tmp_path / "adapter", str(bench.path))
    assert artifact.kind == "adapter" and artifact.details["adapter"] == f"gym_adapters:{type(config).__name__}"
    if isinstance(config, BOFT) and config.n_butterfly_factor > 1 and not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="size mismatch"):  # without its CUDA extension peft has one factor only
            PeftModel.from_pretrained(bench.base(), str(tmp_path / "adapter"))
        return
    plain = PeftModel.from_pretrained(bench.base(), str(tmp_path / "adapter"))
    found, wanted = bench.logits(plain), bench.logits(trained.model)
    assert float((found - wanted).abs().max()) <= 1e-5 * max(1.0, float(wanted.abs().max()))


@pytest.mark.proves("lokr")
def test_saved_opened_and_restored_bit_for_bit(
    bench: Any, trained: AdaptedModel, config: Adapter, tmp_path: Path
) -> None:
    artifact = trained.save(tmp_path / "adapter", str(bench.path), exact=True)
    other: AdaptedModel = config.build(model=bench.base(), seed=1)
    other.load(other.read(tmp_path / "adapter"))
    assert all(torch.equal(weight, other.state()[name]) for name, weight in trained.state().items())
    assert torch.equal(bench.logits(other.model), bench.logits(trained.model))
    assert torch.equal(bench.logits(open_artifact(artifact).model), bench.logits(trained.model))
    assert {path.suffix for path in (tmp_path / "adapter").iterdir()} <= {".json", ".safetensors", ".md"}


def test_the_chunked_head_reaches_every_trained_weight(bench: Any, trained: AdaptedModel) -> None:
    bench.check_head(trained.model.eval())


def test_a_bf16_base_has_an_fp32_adapter(bench: Any, config: Adapter) -> None:
    adapted = built(bench, config, dtype=torch.bfloat16)
    assert all(weight.dtype == torch.float32 for weight in adapted.state().values())
    with torch.autocast("cpu", torch.bfloat16):
        bench.train(adapted.model)
        assert torch.isfinite(bench.logits(adapted.model)).all()


@pytest.mark.parametrize("kind", [LoHa, LoKr, VeRA, OFT, BOFT, LNTuning, IA3])
def test_a_module_that_is_not_there_is_named(bench: Any, kind: type[Adapter]) -> None:
    with pytest.raises(GymError, match=r"no module `w_pack`[^\n]*\n.*down_proj|no module `w_pack`[^\n]*\n.*norm"):
        size = {"block_size": 8} if kind is OFT else {}
        kind(target_modules="q_proj,w_pack" if kind is not LNTuning else "w_pack", **size).build(
            model=bench.base(), seed=0
        )


def count(bench: Any, config: Adapter) -> int:
    return sum(weight.numel() for weight in built(bench, config).state().values())


@pytest.mark.proves("ln_tuning", "loha")
def test_trainable_counts_are_those_of_the_papers(bench: Any) -> None:
    """Hidden 16, feed-forward 32, two heads of 8 over one for keys and values, three layers."""
    shapes = {
        "q": (16, 16),
        "k": (8, 16),
        "v": (8, 16),
        "o": (16, 16),
        "gate": (32, 16),
        "up": (32, 16),
        "down": (16, 32),
    }
    linear = shapes.values()
    assert count(bench, LoHa(rank=3)) == 3 * sum(2 * 3 * (out + into) for out, into in linear)
    assert count(bench, VeRA(rank=6)) == 3 * sum(out + 6 for out, _ in linear)
    assert count(bench, OFT(block_size=8)) == 3 * sum(into // 8 * (8 * 7 // 2) for _, into in linear)
    assert count(bench, BOFT(block_size=4, n_butterfly_factor=2)) == 3 * sum(
        2 * into // 4 * 4 * 4 + out for out, into in linear
    )
    assert count(bench, IA3()) == 3 * (8 + 8 + 32)
    by_head = 3 * (8 + 8) if bench.base().config.model_type == "qwen3" else 0
    assert count(bench, LNTuning()) == 3 * (16 + 16) + 16 + by_head
    assert count(bench, TrainableTokens(tokens=(5, 9))) == 2 * 16 * (
        1 if bench.base().config.tie_word_embeddings else 2
    )


@pytest.mark.parametrize("name", ["loha+extra", "vera", "oft exact", "ia3", "ln_tuning"])
def test_a_folder_holds_what_peft_writes_but_for_its_empty_card(name: str, bench: Any, tmp_path: Path) -> None:
    adapted: Any = built(bench, KINDS[name])
    adapted.save(tmp_path / "ours", "base")
    adapted.peft_model.save_pretrained(str(tmp_path / "peft"), save_embedding_layers=False)
    ours, theirs = ({path.name: path for path in (tmp_path / each).iterdir()} for each in ("ours", "peft"))
    assert theirs.keys() - ours.keys() == {"README.md"}
    found, wanted = (load_file(each["adapter_model.safetensors"]) for each in (ours, theirs))
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)
    said, meant = (json.loads(each["adapter_config.json"].read_text()) for each in (ours, theirs))
    for options in (said, meant):
        options["target_modules"] = sorted(options["target_modules"] or ())
    assert said | {"base_model_name_or_path": None} == meant | {"base_model_name_or_path": None}
    assert said["base_model_name_or_path"] == "base"


@torch.no_grad()
def test_a_model_merges_whose_configuration_says_nothing_of_ties() -> None:
    adapted = LoRA(rank=2).build(model=families.build("inkling_text"), seed=0)
    for weight in adapted.state().values():
        weight.add_(0.05)
    tokens = torch.arange(3, 27).view(2, 12)
    wanted = adapted.model.eval()(tokens).logits
    torch.testing.assert_close(adapted.merged()(tokens).logits, wanted, atol=1e-4, rtol=1e-4)
