"""Adapters beside one another: their updates add up, any of them can rest, and merging can be taken back."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from adapters_bench import TOKENS, Bench
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import EVA, AdaLoRA, DoRA, LoftQ, LoRA, PiSSA, RsLoRA
from gym_adapters.lora_checkpoint import WEIGHTS, LoraFile, write_lora
from gym_adapters.multi_adapter import MultiAdapter
from gym_core import GymError, RecipeError, load_recipe
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.checkpoints.peft_folder import peft_artifact
from gym_torch.kinds import Adapter

KINDS = {
    "one": LoRA(rank=3),
    "two": RsLoRA(rank=2, alpha=5.0, target_modules="q_proj,embed_tokens"),
    "three": PiSSA(rank=2),
}


@pytest.fixture
def bench(model_folder: Path) -> Bench:
    """Return a tied Qwen3, for ties are what merging gets wrong."""
    return Bench("qwen3", True, model_folder)


@pytest.fixture
def folders(bench: Bench, tmp_path: Path) -> dict[str, Path]:
    for number, (name, config) in enumerate(KINDS.items()):
        adapted = bench.begun(config, seed=number)
        bench.train(adapted.model, steps=2 + number)
        adapted.save(tmp_path / name, str(bench.path))
    return {name: tmp_path / name for name in KINDS}


def alone(bench: Bench, folder: Path) -> torch.Tensor:
    return bench.logits(PeftModel.from_pretrained(bench.base(), str(folder)))


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() < 1e-5 * other.abs().max())


def test_switching_gives_what_each_gives_alone(bench: Bench, folders: dict[str, Path]) -> None:
    stack = MultiAdapter(bench.base(), folders)
    for name, folder in folders.items():
        stack.use(**{name: 1.0})
        assert close(bench.logits(stack.model), alone(bench, folder))
    stack.use()
    assert torch.equal(bench.logits(stack.model), bench.logits(bench.base()))


def test_weights_multiply_the_updates(bench: Bench, folders: dict[str, Path], tmp_path: Path) -> None:
    """The model with the updates added to its weights by hand, in float64, computes the same; so does the one saved."""
    stack, weights = MultiAdapter(bench.base(), folders), {"one": 0.7, "two": -0.3, "three": 1.2}
    stack.use(**weights)
    by_hand, updates = bench.base(), {}
    for name, weight in weights.items():
        merged = PeftModel.from_pretrained(bench.base(), str(folders[name])).merge_and_unload()
        plain = dict(bench.base().named_parameters())
        for key, tensor in merged.named_parameters():
            if key in plain:
                updates[key] = updates.get(key, 0) + weight * (tensor.double() - plain[key].double())
    if by_hand.config.tie_word_embeddings:  # the update of the input embedding is none of the head
        by_hand.lm_head.weight = torch.nn.Parameter(by_hand.lm_head.weight.detach().clone())
    for key, weight in by_hand.named_parameters():
        if key in updates and key != "lm_head.weight":
            weight.data = (weight.double() + updates[key]).detach().float()
    assert close(bench.logits(stack.model), bench.logits(by_hand))
    stack.save(tmp_path / "joined", str(bench.path))
    assert close(alone(bench, tmp_path / "joined"), bench.logits(stack.model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_says_how_far_off_it_is_and_can_be_taken_back(
    bench: Bench, folders: dict[str, Path], capsys: pytest.CaptureFixture[str], dtype: torch.dtype
) -> None:
    stack = MultiAdapter(bench.base(dtype=dtype), folders)
    before, weights = bench.logits(stack.model), {name: w.clone() for name, w in stack.model.state_dict().items()}
    difference = stack.merge()
    assert difference < (2e-5 if dtype == torch.float32 else 1.0) * float(before.abs().max())
    assert "merged one, two, three: the logits differ by at most" in capsys.readouterr().err
    with pytest.raises(GymError, match="merged"):
        stack.use(one=1.0)
    place = "model.layers.1.self_attn.q_proj"
    merged, exact = (
        stack.model.get_submodule(place).get_base_layer().weight,
        weights[f"{place}.base_layer.weight"].double(),
    )
    for part in stack.saved.values():
        exact = exact + part.scaling * part.pairs[place]["lora_B"].double() @ part.pairs[place]["lora_A"].double()
    assert merged.dtype == dtype
    if dtype == torch.bfloat16:  # the sum is rounded, and not each of its parts
        assert (merged == exact.bfloat16()).float().mean() > 0.99
    stack.unmerge()
    assert torch.equal(bench.logits(stack.model), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in stack.model.state_dict().items())
    head, embedding = stack.model.get_output_embeddings(), stack.model.get_input_embeddings()
    assert (head.weight is embedding.base_layer.weight) == stack.model.config.tie_word_embeddings
    stack.use(two=0.5)
    assert stack.merge() >= 0.0


def test_names_that_are_not_there_are_refused(bench: Bench, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(GymError, match=r"no adapter `four`[^\n]*\n.*one, two, three"):
        MultiAdapter(bench.base(), folders).use(four=1.0)
    stack = MultiAdapter(bench.base(), folders)
    stack.use()
    with pytest.raises(GymError, match="nothing to save"):
        stack.save(tmp_path / "nothing", "base")
    with pytest.raises(GymError, match="there is no such folder"):
        MultiAdapter(bench.base(), {"four": tmp_path / "nothing"})
    bench.begun(DoRA(rank=3)).save(tmp_path / "dora", "base")
    with pytest.raises(GymError, match=r"only a plain LoRA.*use_dora"):
        MultiAdapter(bench.base(), {"dora": tmp_path / "dora"})


def test_an_adapter_of_a_model_of_another_size_is_refused(bench: Bench, tmp_path: Path) -> None:
    lora = {"lora_A": torch.ones(3, 20), "lora_B": torch.ones(16, 3)}
    write_lora(tmp_path, str(bench.path), LoraFile(3, 2.0, {"model.layers.0.self_attn.q_proj": lora}))
    with pytest.raises(
        GymError, match=r"lora_A of model\.layers\.0\.self_attn\.q_proj is \[3, 20\] in it, and \[3, 16\]"
    ):
        LoRA(rank=3, adapter_name_or_path=str(tmp_path)).build(model=bench.base(), seed=0)


def test_layers_that_the_one_to_go_on_leaves_alone_train_too(bench: Bench, tmp_path: Path) -> None:
    """With A and B of zeros, neither would ever have a gradient."""
    one = bench.begun(LoRA(rank=3, target_modules="q_proj"))
    bench.train(one.model)
    one.save(tmp_path / "one", str(bench.path))
    adapted = bench.begun(LoRA(rank=3, target_modules="all", adapter_name_or_path=str(tmp_path / "one")))
    assert close(bench.logits(adapted.model), bench.logits(one.model))
    before = {name: weight.clone() for name, weight in adapted.state().items()}
    bench.train(adapted.model)
    assert all(not torch.equal(weight, before[name]) for name, weight in adapted.state().items() if "lora_B" in name)
    with adapted.disable_adapter():
        assert close(bench.logits(adapted.model), bench.logits(one.model))


@pytest.mark.parametrize("theirs", ["pissa", "pissa_niter_4", "olora"])
def test_an_adapter_whose_base_was_changed_is_refused(bench: Bench, tmp_path: Path, theirs: str) -> None:
    """peft would change the base once more, and what stands beside it with it."""
    options = LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=theirs, task_type="CAUSAL_LM")
    get_peft_model(bench.base(), options).save_pretrained(str(tmp_path / "theirs"))
    with pytest.raises(GymError, match="belongs to a base that was changed") as caught:
        LoRA(rank=3, target_modules="q_proj", adapter_name_or_path=str(tmp_path / "theirs")).build(
            model=bench.base(), seed=0
        )
    assert "path_initial_model_for_weight_conversion" in caught.value.problems[0].fix
    bench.begun(LoftQ(rank=3)).save(tmp_path / "rounded", "base")
    with pytest.raises(GymError, match="belongs to a base that was changed"):
        MultiAdapter(bench.base(), {"rounded": tmp_path / "rounded"})


@pytest.mark.parametrize("table", ["embed_tokens", "lm_head"])
def test_copies_of_embeddings_are_no_part_of_what_peft_wrote(bench: Bench, tmp_path: Path, table: str) -> None:
    """peft writes the base's embeddings beside a LoRA on them; others than the model's would be another base."""
    options = LoraConfig(r=3, target_modules=["q_proj", table], task_type="CAUSAL_LM")
    theirs = get_peft_model(bench.base(), options)
    bench.train(theirs)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    expected, both = alone(bench, tmp_path / "theirs"), ("q_proj", table)
    config = LoRA(rank=3, alpha=8.0, target_modules=both, adapter_name_or_path=str(tmp_path / "theirs"))
    stack = MultiAdapter(bench.base(), {"theirs": tmp_path / "theirs"})
    stack.save(tmp_path / "saved", str(bench.path))
    opened = open_artifact(peft_artifact(tmp_path / "theirs", str(bench.path)))
    for model in (stack.model, config.build(model=bench.base(), seed=0).model, opened.model):
        assert close(bench.logits(model), expected)
    assert close(alone(bench, tmp_path / "saved"), expected)
    weights = load_file(tmp_path / "theirs" / WEIGHTS)
    name = next(name for name in weights if name.endswith(f"{table}.base_layer.weight"))
    save_file(weights | {name: weights[name] + 1}, tmp_path / "theirs" / WEIGHTS)
    for opening in (
        lambda: MultiAdapter(bench.base(), {"theirs": tmp_path / "theirs"}),
        lambda: config.build(model=bench.base(), seed=0),
        lambda: open_artifact(peft_artifact(tmp_path / "theirs", str(bench.path))),
    ):
        with pytest.raises(GymError, match=rf"holds [\w.]*{table}.weight beside .* not that of the model"):
            opening()


def test_biases_that_trained_are_refused_by_name(tmp_path: Path) -> None:
    """They would stay where the adapter rests, and be lost where it is saved."""
    shape = AutoConfig.for_model(
        "llama", vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        attention_bias=True,
    )  # fmt: skip
    base = AutoModelForCausalLM.from_config(shape)
    theirs = get_peft_model(deepcopy(base), LoraConfig(r=3, target_modules=["q_proj"], bias="lora_only"))
    theirs.save_pretrained(str(tmp_path / "theirs"))
    MultiAdapter(deepcopy(base), {"theirs": tmp_path / "theirs"})  # none has moved
    theirs.get_submodule("base_model.model.model.layers.0.self_attn.q_proj").base_layer.bias.data += 1
    theirs.save_pretrained(str(tmp_path / "theirs"))
    with pytest.raises(GymError, match=r"holds model\.layers\.0\.self_attn\.q_proj\.bias beside"):
        MultiAdapter(base, {"theirs": tmp_path / "theirs"})


def test_layers_that_lie_the_other_way_round_are_opened_as_peft_wrote_them(tmp_path: Path) -> None:
    shape = AutoConfig.for_model("gpt2", vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    base = AutoModelForCausalLM.from_config(shape)
    base.save_pretrained(tmp_path / "base")
    options = LoraConfig(r=3, target_modules=["c_attn"], exclude_modules=["h.1.attn.c_attn"], init_lora_weights=False)
    theirs = get_peft_model(base, options)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    artifact = peft_artifact(tmp_path / "theirs", str(tmp_path / "base"))
    assert artifact.details["options"]["target_modules"] == ["transformer.h.0.attn.c_attn"]
    assert close(open_artifact(artifact).model.eval()(TOKENS).logits, theirs.eval()(TOKENS).logits)


@pytest.mark.proves("lora")
@pytest.mark.parametrize("kind", [LoRA, PiSSA])
def test_a_new_one_trains_beside_those_that_are_there(
    bench: Bench, folders: dict[str, Path], tmp_path: Path, kind: type[LoRA]
) -> None:
    """At first it computes what they do, they stay as they are, and the file needs none of them."""
    named = (str(folders["one"]), str(folders["two"]))
    config = kind(rank=3, target_modules="all")
    with pytest.raises(GymError, match=r"changes model\.embed_tokens"):
        config.model_copy(update={"adapter_name_or_path": named, "create_new_adapter": True}).build(
            model=bench.base(), seed=0
        )
    config = config.model_copy(
        update={"adapter_name_or_path": (str(folders["one"]), str(folders["three"])), "create_new_adapter": True}
    )
    both = MultiAdapter(bench.base(), {"one": folders["one"], "three": folders["three"]})
    adapted = config.build(model=bench.base(), seed=0)
    with torch.autocast("cpu", torch.bfloat16):  # the reference of a preference, which is the policy at first
        policy = bench.logits(adapted.model)
        with adapted.disable_adapter():
            assert kind is PiSSA or torch.equal(bench.logits(adapted.model), policy)
        assert torch.equal(bench.logits(adapted.model), policy)
    adapted = bench.begun(config)
    assert close(bench.logits(adapted.model), bench.logits(both.model))
    bench.train(adapted.model)
    with adapted.disable_adapter():
        assert close(bench.logits(adapted.model), bench.logits(both.model))
    artifact = adapted.save(tmp_path / "saved", str(bench.path), exact=True)
    assert close(alone(bench, tmp_path / "saved"), bench.logits(adapted.model))
    again = config.build(model=bench.base(), seed=9)
    again.load(again.read(tmp_path / "saved"))
    assert torch.equal(bench.logits(again.model), bench.logits(adapted.model))
    for folder in folders.values():
        (folder / "adapter_config.json").unlink()
    assert close(bench.logits(open_artifact(artifact).model), bench.logits(adapted.model))


def test_the_last_one_goes_on(bench: Bench, folders: dict[str, Path], tmp_path: Path) -> None:
    config = LoRA(rank=3, adapter_name_or_path=f"{folders['three']},{folders['one']}")
    adapted = bench.begun(config)
    both = MultiAdapter(bench.base(), {"one": folders["one"], "three": folders["three"]})
    assert close(bench.logits(adapted.model), bench.logits(both.model))
    bench.train(adapted.model)
    assert not close(bench.logits(adapted.model), bench.logits(both.model))
    with adapted.disable_adapter():  # before it was trained, it was there already
        assert close(bench.logits(adapted.model), bench.logits(both.model))
    adapted.save(tmp_path / "saved", str(bench.path))
    assert close(alone(bench, tmp_path / "saved"), bench.logits(adapted.model))
    assert json.loads((tmp_path / "saved" / "adapter_config.json").read_text())["r"] == 3 + 4
    with pytest.raises(GymError, match=r"has rank 3 and scaling 2, the recipe has 4 and 2[^\n]*(\n.*)*rank: 3"):
        LoRA(rank=4, adapter_name_or_path=str(folders["one"])).build(model=bench.base(), seed=0)
    where = {"target_modules": "q_proj,embed_tokens", "adapter_name_or_path": str(folders["two"])}
    with pytest.raises(GymError, match=r"rank: 2 and alpha: 5,"):  # as this adapter scales, by the root of the rank
        RsLoRA(rank=2, **where).build(model=bench.base(), seed=0)
    RsLoRA(rank=2, alpha=5.0, **where).build(model=bench.base(), seed=0)
    for kind in (PiSSA, EVA):
        with pytest.raises(GymError, match="has begun already"):
            kind(rank=3, adapter_name_or_path=str(folders["one"])).build(model=bench.base(), seed=0)


@pytest.mark.proves("dora")
@pytest.mark.parametrize("kind", [DoRA, AdaLoRA, LoftQ])
def test_what_cannot_stand_beside_others_has_no_option_for_them(kind: type[Adapter]) -> None:
    assert not {"adapter_name_or_path", "create_new_adapter"} & kind.model_fields.keys()
    recipe = {"model": "tiny", "data": "some.jsonl", "algorithm": "sft"}
    with pytest.raises(RecipeError, match="adapter_name_or_path"):
        load_recipe(recipe | {"adapter": {"name": kind.__name__.lower(), "adapter_name_or_path": "somewhere"}})
