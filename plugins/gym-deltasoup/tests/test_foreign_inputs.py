"""Directories that other libraries wrote, or that somebody broke: merged as what they are, or refused by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig

import gym_deltasoup as soup
from gym_adapters.lora_checkpoint import LoraFile, write_lora
from gym_core import GymError
from gym_deltasoup import DeltaSoup, DeltaSoupConfig, Input, merge_artifacts, merge_vectors
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.rounds.checks import Refused, check
from gym_deltasoup.rounds.vectors import change_of, layout
from gym_testkit.bench import Bench
from gym_testkit.tiny import write_model
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.model.scalar_head import ScalarHead


def quantized(path: Path, seed: int) -> Path:
    """Write a model whose linear layers are codes of 8 bits with a scale, as files of DeepSeek and Qwen have them."""
    write_model(path, seed)
    weights, found = load_file(path / "model.safetensors"), {}
    for name, weight in weights.items():
        if weight.dim() == 2 and ".layers." in name:
            scale = seed * weight.abs().max() / 448
            found |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}
        else:
            found[name] = weight
    save_file(found, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_codes_of_quantized_models_are_no_weights(tmp_path: Path) -> None:
    """The mean of codes beside the mean of their scales is not the mean of what they stand for."""
    models = [quantized(tmp_path / f"{seed}", seed) for seed in (1, 2)]
    with pytest.raises(GymError, match=r"is quantized \(fp8\)"):
        merge_artifacts(soup.UniformSoup(), [Input(each) for each in models], tmp_path / "made")
    with pytest.raises(GymError, match=r"is quantized \(fp8\)"):
        merge_artifacts(soup.UniformSoup(), [Input(models[0])], tmp_path / "made", base=str(models[1]))
    assert not (tmp_path / "made").exists()


LAYER = "model.layers.0.self_attn.q_proj"


def test_adapters_of_gpt2_are_those_of_its_layers(tmp_path: Path) -> None:
    """Its matrices lie turned, `[in, out]`, and an adapter of peft is told of `[out, in]`."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )
    base, adapters = tmp_path / "base", [tmp_path / f"adapter-{seed}" for seed in range(3)]
    model.save_pretrained(base)
    lora = LoraConfig(r=2, target_modules=["c_attn", "c_proj"], init_lora_weights=False, fan_in_fan_out=True)
    for path in adapters:
        get_peft_model(model, lora).save_pretrained(path)
        model = GPT2LMHeadModel.from_pretrained(base)
    rules = DeltaSoupConfig(
        base_model=str(base), folder=str(tmp_path / "soup"), enable_rewards=False, byzantine_threshold=0, rank=6
    )
    community = DeltaSoup(rules)
    for number, path in enumerate(adapters):
        community.contribute(f"user-{number}", path)
    merged = community.aggregate()
    assert len(merged.report["accepted"]) == 3
    shapes = layout(Base(str(base)), ("*.attn.c_attn.weight", "*.c_proj.weight"), adapter=True)
    products = [change_of(path, Base(str(base)), shapes, tmp_path / "scratch") for path in adapters]
    found = change_of(merged.artifact.path, Base(str(base)), shapes, tmp_path / "scratch")
    torch.testing.assert_close(found, sum(products) / 3)
    opened = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(base), merged.artifact.path)
    layer = opened.base_model.model.transformer.h[0].attn.c_attn
    torch.testing.assert_close(layer.get_delta_weight("default").T.flatten(), found[: 3 * 8 * 8])


def adapter(base: Path, into: Path, seed: int) -> Path:
    """Write a LoRA of one layer, as peft does."""
    draw = torch.Generator().manual_seed(seed)
    pair = {"lora_A": torch.randn(2, 32, generator=draw), "lora_B": torch.randn(32, 2, generator=draw)}
    return write_lora(into, str(base), LoraFile(2, 0.5, {LAYER: pair}))


def test_adapters_of_different_bases_are_refused_also_where_no_base_is_named(tmp_path: Path) -> None:
    base, other = (write_model(tmp_path / name, seed) for name, seed in (("base", 0), ("other", 1)))
    first = adapter(base, tmp_path / "first", 1)
    with pytest.raises(GymError, match=r"was trained from .*other, and .*first from .*base"):
        inputs = [Input(first), Input(adapter(other, tmp_path / "second", 2))]
        merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made")
    again = shutil.copytree(base, tmp_path / "again")  # the same weights in another folder are the same base
    inputs = [Input(first), Input(adapter(again, tmp_path / "third", 3))]
    assert merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made").artifact.base == str(base)
    inputs = [Input(adapter(Path("nobody/knows"), tmp_path / f"hub{seed}", seed)) for seed in (4, 5)]
    merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "of-hub")


def test_a_broken_adapter_is_refused_by_name(tmp_path: Path) -> None:
    """Who merges what others sent is told whose file it is, and of what."""
    base = write_model(tmp_path / "base", 0)
    sound = Input(adapter(base, tmp_path / "sound", 1), "sound")

    def refused(match: str, broken: Path) -> None:
        with pytest.raises(GymError, match=match) as caught:
            merge_artifacts(soup.UniformSoup(), [sound, Input(broken, "broken")], tmp_path / "made")
        assert str(broken) in str(caught.value)

    options = (
        {"r": 0}, {"r": None}, {"r": "2"}, {"r": True}, {"lora_alpha": None}, {"lora_alpha": math.inf},
        {"rank_pattern": {"q_proj": 0}}, {"rank_pattern": ["q_proj"]}, {"alpha_pattern": {"(": 1}},
        {"alpha_pattern": {"q_proj": "8"}},
    )  # fmt: skip
    for number, option in enumerate(options):
        path = adapter(base, tmp_path / f"option-{number}", 2)
        told = json.loads((path / "adapter_config.json").read_text())
        (path / "adapter_config.json").write_text(json.dumps(told | option))
        refused("scale nothing", path)
    for half, shape in (("lora_A", (5, 32)), ("lora_B", (32, 3)), ("lora_A", ())):
        path = adapter(base, tmp_path / f"{half}-{len(shape)}", 2)
        tensors = load_file(path / "adapter_model.safetensors")
        name = next(name for name in tensors if half in name)
        save_file(tensors | {name: torch.zeros(shape)}, path / "adapter_model.safetensors")
        refused("says `r` is 2", path)
    path = adapter(base, tmp_path / "cut", 2)
    (path / "adapter_model.safetensors").write_bytes(b"cut off")
    refused("is damaged", path)


@pytest.mark.parametrize("stable", [False, True])
def test_layers_of_an_adapter_may_have_ranks_and_scalings_of_their_own(tmp_path: Path, stable: bool) -> None:
    """As peft tells the layers of a pattern: by the end of their names, or by a regular expression for that."""
    base = write_model(tmp_path / "base", 0)
    patterns = [
        {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 16, "k_proj": 1}},
        {"alpha_pattern": {"model.layers.0.self_attn.k_proj": 3}},
        {"rank_pattern": {"k_proj": 1, "self_attn.[qv]_proj": 3}},
    ]
    layers, paths, wanted = ["q_proj", "k_proj", "v_proj"], [], dict.fromkeys(("q_proj", "k_proj", "v_proj"), 0.0)
    for number, pattern in enumerate(patterns):
        torch.manual_seed(number)
        options = LoraConfig(
            r=2, lora_alpha=8, target_modules=layers, init_lora_weights=False, use_rslora=stable, **pattern
        )
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), options)
        paths.append(tmp_path / f"adapter-{number}")
        model.save_pretrained(paths[-1])
        for layer in layers:
            made = model.get_submodule(f"base_model.model.model.layers.0.self_attn.{layer}")
            wanted[layer] += made.get_delta_weight("default").detach() / len(patterns)
    made = merge_artifacts(
        soup.UniformSoup(), [Input(path) for path in paths], tmp_path / "made", base=str(base), rank=32
    )
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), made.artifact.path)
    for layer in layers:
        found = model.get_submodule(f"base_model.model.model.layers.0.self_attn.{layer}").get_delta_weight("default")
        torch.testing.assert_close(found, wanted[layer], rtol=1e-4, atol=1e-5)
    made = merge_artifacts(soup.UniformSoup(), [Input(path) for path in paths], tmp_path / "ranked", base=str(base))
    assert made.report["rank"] == 4


def sharded(path: Path, seed: int) -> Path:
    """Write a model of two shards with an index, and beside it a shard of an earlier save, which the index does not name."""
    write_model(path, seed)
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    where = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: weights[name] for name in names if where[name] == file}, path / file, {"format": "pt"})
    stale = {name: weights[name] + 7 for name in names} | {"gone.weight": torch.ones(2)}
    save_file(stale, path / "model-00003-of-00003.safetensors", {"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return path


def test_shards_that_an_index_does_not_name_are_no_weights(tmp_path: Path) -> None:
    """Also for the name of the weights of a base."""
    models = [sharded(tmp_path / f"{seed}", seed) for seed in (1, 2)]
    whole = [write_model(tmp_path / f"whole-{seed}", seed) for seed in (1, 2)]
    assert base_fingerprint(models[0]) == base_fingerprint(whole[0])
    merge_artifacts(soup.UniformSoup(), [Input(each) for each in models], tmp_path / "made")
    merge_artifacts(soup.UniformSoup(), [Input(each) for each in whole], tmp_path / "wanted")
    found, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("made", "wanted"))
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_config_in_the_words_of_another_version_is_the_same(tmp_path: Path) -> None:
    """Models of the Hub have the keys of the transformers that wrote them, and what others save has all keys of another one."""
    older, newer = (write_model(tmp_path / name, seed) for seed, name in enumerate(("older", "newer")))
    config = json.loads((older / "config.json").read_text())
    rope = config.pop("rope_parameters")["rope_theta"]
    (older / "config.json").write_text(
        json.dumps(config | {"rope_theta": rope, "rope_scaling": None, "torch_dtype": "float32"})
    )
    AutoConfig.from_pretrained(newer).save_pretrained(newer)
    notes = {"unsloth_version": "2025.1", "_attn_implementation_autoset": True}
    (newer / "config.json").write_text(json.dumps(json.loads((newer / "config.json").read_text()) | notes))
    merge_artifacts(soup.UniformSoup(), [Input(older), Input(newer)], tmp_path / "made")
    (older / "config.json").write_text(json.dumps(config | {"rope_theta": rope + 1}))
    with pytest.raises(GymError, match="`rope_parameters` differs"):
        merge_artifacts(soup.UniformSoup(), [Input(older), Input(newer)], tmp_path / "other")


def test_whose_chat_template_and_stop_tokens_the_result_has_is_said(tmp_path: Path) -> None:
    """They have no mean, and the first by name may be a model without any."""
    models = [write_model(tmp_path / f"{seed}", seed) for seed in range(3)]
    said: list[str] = []

    def merged(names: str) -> list[str]:
        inputs = [Input(model, name) for model, name in zip(models, names, strict=True)]
        made = merge_artifacts(soup.UniformSoup(), inputs, tmp_path / names, announce=said.append)
        assert json.loads((made.artifact.path / "merge.json").read_text())["taken_from_first"] == said
        return [said.pop(0) for _ in [*said]]

    assert merged("abc") == []
    (models[1] / "chat_template.jinja").write_text("{{ messages }}")
    (models[2] / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    template, stops = "another chat template, and the result", "other stop tokens, and the result"
    assert merged("xyz") == [f"y has {template} that of x", f"z has {stops} those of x"]
    assert merged("rpq")[0] == f"q has {template} that of p"
    (models[0] / "chat_template.jinja").unlink()
    assert merged("klm")[0] == "l has another chat template, and the result none, as k"


def test_two_sets_of_weights_in_a_folder_are_refused(tmp_path: Path) -> None:
    """`model.safetensors` beside an index that does not name it: libraries differ in which of them they load."""
    model = sharded(tmp_path / "1", 1)
    shutil.copy(model / "model-00003-of-00003.safetensors", model / "model.safetensors")
    with pytest.raises(GymError, match=r"model\.safetensors lies beside"):
        merge_artifacts(soup.UniformSoup(), [Input(model)], tmp_path / "made")


def test_a_folder_in_two_spellings_is_one_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it counts twice, and takes the part of two who agree."""
    model = write_model(tmp_path / "one", 1)
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for other in (Path("one"), Path("./one/../one"), tmp_path / "link"):
        with pytest.raises(GymError, match="are one folder"):
            merge_artifacts(soup.UniformSoup(), [Input(model), Input(other, "other")], tmp_path / "made")


def test_communities_of_whole_models_over_a_quantized_base_are_refused_before_anybody_contributes(
    tmp_path: Path,
) -> None:
    """Whether the rules say that models are merged, or the first contribution does."""
    base = quantized(tmp_path / "base", 1)
    for number, rules in enumerate([{"kind": "model"}, {"kind": "delta"}]):
        with pytest.raises(GymError, match=r"is quantized \(fp8\)"):
            DeltaSoup(DeltaSoupConfig(folder=str(tmp_path / f"{number}"), base_model=str(base), **rules))
    soup = DeltaSoup(DeltaSoupConfig(folder=str(tmp_path / "soup"), base_model=str(base)))
    with pytest.raises(Refused, match=r"is quantized \(fp8\)"):
        soup.contribute("alice", quantized(tmp_path / "tuned", 2))


def test_weights_of_a_mean_are_shares_however_large_or_small_they_are() -> None:
    changes = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    for weight in (5e-324, 1.0, 1e308):
        found = merge_vectors(soup.WeightedMean(), changes, weights=[weight, weight]).vector
        assert found.tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "match"),
    [
        ((3,), torch.float32, {}, r"not \[3\] in float32"),
        ((0, 3), torch.float32, {}, "one at least"),
        ((3, 2), torch.bfloat16, {}, "in bfloat16"),
        ((3, 2), torch.float32, {"ids": ["a"]}, "ids: there are 1, and 3 vectors"),
        ((3, 2), torch.float32, {"weights": [1.0, 2.0]}, "weights: there are 2, and 3 vectors"),
    ],
)
def test_what_is_no_matrix_of_vectors_is_refused(shape, dtype, options, match) -> None:
    """Names of fewer inputs would stand for others in the report."""
    with pytest.raises(GymError, match=match):
        merge_vectors(soup.WeightedMean(), torch.ones(shape, dtype=dtype), **options)


def test_vectors_without_numbers_have_a_merge_by_rows() -> None:
    assert merge_vectors(soup.DELLA(), torch.zeros(3, 0)).vector.shape == (0,)


def test_results_that_a_number_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    """A sum beyond 65504 is infinite in fp16, and the model then says nothing; nothing is left of it."""
    base, tuned = (write_model(tmp_path / name, 1) for name in ("base", "tuned"))
    weights = {name: each.half() for name, each in load_file(tuned / "model.safetensors").items()}
    weights["model.norm.weight"] += 1
    save_file(weights, tuned / "model.safetensors", {"format": "pt"})
    rule = soup.TaskArithmetic(scale=1e5)
    with pytest.raises(GymError, match=r"model\.norm\.weight .* float16"):
        merge_artifacts(rule, [Input(tuned)], tmp_path / "made", base=str(base))
    adapters = [adapter(base, tmp_path / f"{seed}", seed) for seed in (1, 2)]
    with pytest.raises(GymError, match=r"self_attn\.q_proj .* float32"):
        merge_artifacts(soup.TaskArithmetic(scale=1e300), [Input(each) for each in adapters], tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_adapters_without_a_layer_are_refused(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", 1)
    empty = adapter(base, tmp_path / "empty", 1)
    save_file({}, empty / "adapter_model.safetensors")
    with pytest.raises(GymError, match="changes no layer"):
        merge_artifacts(soup.UniformSoup(), [Input(empty)], tmp_path / "made")


def test_reward_models_are_refused_rather_than_merged_without_their_head(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 1)
    ScalarHead(32).save(model)
    with pytest.raises(GymError, match="is a reward model"):
        merge_artifacts(soup.UniformSoup(), [Input(model)], tmp_path / "made")


def test_a_model_with_a_copy_of_a_tied_weight_is_merged_after_an_export(bench: Bench, tmp_path: Path) -> None:
    """As other tools write them; the message says so."""
    plain, copied = (write_model(tmp_path / name, seed) for seed, name in enumerate(("plain", "copied")))
    weights = load_file(copied / "model.safetensors")
    again = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": again}, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(GymError, match=r"lm_head\.weight[\s\S]* copy of a tied weight, `gym export` leaves it out"):
        merge_artifacts(soup.UniformSoup(), [Input(plain), Input(copied)], tmp_path / "made")
    assert bench.gym("export", str(copied), "--into", str(tmp_path / "once")).returncode == 0
    merge_artifacts(soup.UniformSoup(), [Input(plain), Input(tmp_path / "once")], tmp_path / "made")


def test_a_base_in_the_format_of_gpt2_on_the_hub_has_the_layers_that_adapters_name(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    bare = {name.removeprefix("transformer."): each for name, each in load_file(file).items()}
    save_file(bare | {"h.0.attn.bias": torch.ones(1, 1, 16, 16)}, file, {"format": "pt"})
    base = Base(str(tmp_path))
    assert base.matrix("transformer.h.0.attn.c_attn") == (24, 8) and base.matrix("h.0.attn.c_attn") is None


@pytest.mark.parametrize(
    ("config", "made"),
    [
        (GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2), "transformer.h.0.attn.bias"),
        (
            GPTNeoXConfig(
                vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
            ),
            "gpt_neox.layers.0.attention.masked_bias",
        ),
    ],
)
def test_whole_models_are_merged_by_the_names_that_they_have_in_memory(config, made, tmp_path):
    """Files of a base on the Hub may lack a prefix and hold masks, and those of who trained it have neither."""
    weights = {}
    for seed, name in enumerate(("base", "first", "second")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(tmp_path / name)
        weights[name] = load_file(tmp_path / name / "model.safetensors")
    for name, bare in (("base", "transformer."), ("second", "")):
        file = tmp_path / name / "model.safetensors"
        held = weights[name] | {made: torch.ones(1, 1, 16, 16 + len(bare))}
        save_file({each.removeprefix(bare): value for each, value in held.items()}, file, {"format": "pt"})
    inputs = [Input(tmp_path / name) for name in ("first", "second")]
    merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made", base=str(tmp_path / "base"))
    found = load_file(tmp_path / "made" / "model.safetensors")
    mean = {name: (value + weights["second"][name]) / 2 for name, value in weights["first"].items()}
    torch.testing.assert_close(found, mean)
    base = Base(str(tmp_path / "base"))
    for name in ("first", "second"):
        check(tmp_path / name / "model.safetensors", "model", {}, base, 10.0, 1 << 20)
