"""`gym merge`: a recipe in, an artifact out, and nothing half."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import tomllib
from functools import partial
from pathlib import Path

import click
import merge_oracles as oracles
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gym_core import Artifact, GymError, RecipeError, cli, load_recipe
from gym_core.errors import FAILED
from gym_core.yamlfile import parse_yaml
from gym_deltasoup.config.mixing import NNM
from gym_deltasoup.config.robust import MultiKrum
from gym_deltasoup.config.server import SoupServerConfig, load_server
from gym_deltasoup.merge_commands import merge
from gym_deltasoup.recipe import MergeRecipe, load_merge
from gym_deltasoup.soup_commands import soup
from gym_testkit.metadata_files import forget_installed, installed_in, write_distribution


def scored(artifact: Artifact) -> float:
    """Return how near a candidate is to zero, for recipes."""
    return -float(sum(weight.norm() for weight in load_file(artifact.path / "model.safetensors").values()))


@pytest.fixture
def recipe(bench) -> Path:
    """Return a recipe of four models, of which one is a lie."""
    for seed in range(4):
        bench.model(seed)
    lie = bench.root / "model-3/model.safetensors"
    save_file({name: torch.full_like(each, torch.nan) for name, each in load_file(lie).items()}, lie)
    path = bench.root / "soup.yaml"
    inputs = ", ".join(f"{{path: {bench.root}/model-{seed}, name: user-{seed}}}" for seed in range(4))
    path.write_text(f"merger: nnm\nbase: {bench.model()}\ninputs: [{inputs}]\noutput: {bench.root}/made\n")
    return path


def test_a_recipe_becomes_an_artifact_and_a_report(recipe, bench):
    done = CliRunner().invoke(merge, [str(recipe), "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    assert told["output"] == str(bench.root / "made") and told["excluded"] == {"user-3": "NaN"}
    assert told["hostile"] == told["tolerated_byzantine"] == 1
    assert Artifact.read(bench.root / "made").details["merge"] == {"merger": "nnm", "inputs": 4}
    again = CliRunner().invoke(merge, [str(recipe), "hostile=0", f"output={bench.root}/other"], catch_exceptions=False)
    assert "user-3 was left out: it holds NaN" in again.output
    assert (
        "merged 3 inputs with nnm; it tolerates 0 hostile among them" in again.output and "it took" not in again.output
    )
    krum = [str(recipe), "merger=krum", f"output={bench.root}/one"]
    with pytest.raises(GymError, match="user-3 holds NaN, and krum tolerates no hostile one of 4 inputs"):
        CliRunner().invoke(merge, [*krum, "hostile=0"], catch_exceptions=False)
    sound = "inputs=[" + ", ".join(f"{bench.root}/model-{seed}" for seed in range(3)) + "]"
    one = CliRunner().invoke(merge, [*krum, sound], catch_exceptions=False)
    assert re.search(r"it took 1 of 3: \S+model-[012]\n", one.output), "else it reads as if all were in it"
    assert re.search(r"\| taken \| 1 of 3: \S+model-[012] \|", (bench.root / "one/README.md").read_text())


def test_weights_and_densities_of_inputs_are_used_and_recorded(recipe, bench):
    recipe.write_text(
        f"merger: {{name: ties, scope: tensor}}\nbase: {bench.model()}\noutput: {bench.root}/made\ninputs:\n"
        f"  - {{path: {bench.root}/model-0, name: a, weight: 0.7, density: 0.5}}\n"
        f"  - {{path: {bench.root}/model-1, name: b, density: 1.0}}\n"
    )
    told = json.loads(CliRunner().invoke(merge, [str(recipe), "--json"], catch_exceptions=False).output)
    assert [(each.get("weight"), each.get("density")) for each in told["inputs"]] == [(0.7, 0.5), (None, 1.0)]
    base, made, *models = (
        load_file(path / "model.safetensors")
        for path in (bench.model(), bench.root / "made", bench.model(0), bench.model(1))
    )
    for name, weight in base.items():
        x = torch.stack([(model[name] - weight).flatten().double() for model in models]).numpy()
        change = (made[name] - weight).flatten().double().numpy()
        wanted = oracles.ties(x, weights=[0.7, 1.0], densities=[0.5, 1.0])
        assert abs(change - wanted).max() < 1e-6, name


def deep(name: str, said) -> float:
    """Evaluate a value as mergekit states it, for a model of three layers."""
    if isinstance(said, dict):
        said = next(value for part, value in said.items() if part == "*" or part in name)
    layer = re.search(r"layers\.(\d)", name)
    depth = int(layer[1]) / 2 if layer else 0.0 if "embed" in name else 1.0
    return float(np.interp(depth * (np.size(said) - 1), range(np.size(said)), np.atleast_1d(said)))


@pytest.fixture
def deep_models(bench) -> list[Path]:
    """Return a base of three layers with an untied head, and two models of it."""
    base = bench.model()
    weights = load_file(base / "model.safetensors")
    weights = {
        name.replace("layers.0.", f"layers.{n}."): each.clone() for name, each in weights.items() for n in range(3)
    }
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    config = json.loads((base / "config.json").read_text())
    paths = []
    for seed in range(3):
        path = shutil.copytree(base, bench.root / f"deep-{seed}")
        draw = torch.Generator().manual_seed(seed)
        moved = {name: each + 0.1 * torch.randn(each.shape, generator=draw) for name, each in sorted(weights.items())}
        save_file(moved, path / "model.safetensors", {"format": "pt"})
        told = {**config, "num_hidden_layers": 3, "tie_word_embeddings": False, "layer_types": None}
        (path / "config.json").write_text(json.dumps(told))
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    ("merger", "weight", "density", "oracle"),
    [
        ("{name: slerp, t: [0, 0.5, 0.2, 1]}", None, None, lambda x, w, d, t: oracles.slerp(x, t=t([0, 0.5, 0.2, 1]))),
        (
            '{name: slerp, t: {self_attn: [0, 1], mlp: [1, 0], "*": 0.5}}',
            None,
            None,
            lambda x, w, d, t: oracles.slerp(x, t=t({"self_attn": [0, 1], "mlp": [1, 0], "*": 0.5})),
        ),
        ("{name: task_arithmetic, scale: 1}", [1, 0.2], None, lambda x, w, d, t: w * x[0] + x[1]),
        ("weighted_mean", {"norm": 3, "*": [1, 2]}, None, lambda x, w, d, t: (w * x[0] + x[1]) / (w + 1)),
        (
            "{name: ties, scope: tensor, density: 0.6}",
            [0.5, 2],
            {"mlp": [1, 0.2], "*": 0.4},
            lambda x, w, d, t: oracles.ties(x, weights=[w, 1.0], densities=[d, 0.6]),
        ),
        (
            "{name: breadcrumbs, bottom: 0.5, top: 0.125}",
            [0.5, 2],
            [0.75, 0.25],
            lambda x, w, d, t: oracles.breadcrumbs(x, top=0.125, weights=[w, 1.0], densities=[d, 0.375]),
        ),
    ],
    ids=["slerp", "slerp by name", "task_arithmetic", "weighted_mean", "ties", "breadcrumbs"],
)
def test_values_change_with_the_layer(deep_models, tmp_path, merger, weight, density, oracle):
    base, *models = deep_models
    told = {key: said for key, said in (("weight", weight), ("density", density)) if said is not None}
    inputs = [{"path": str(models[0]), **told}, {"path": str(models[1])}]
    recipe = tmp_path / "merge.yaml"
    recipe.write_text(f"merger: {merger}\nbase: {base}\noutput: {tmp_path}/made\ninputs: {json.dumps(inputs)}\n")
    CliRunner().invoke(merge, [str(recipe)], catch_exceptions=False)
    first, made, *others = (load_file(path / "model.safetensors") for path in (base, tmp_path / "made", *models))
    for name, before in first.items():
        x = torch.stack([(other[name] - before).flatten() for other in others]).double().numpy()
        wanted = oracle(x, deep(name, weight or 1), deep(name, density or 1), partial(deep, name))
        change = (made[name] - before).flatten().double().numpy()
        assert abs(change - wanted).max() < 1e-6, name


@pytest.mark.parametrize(
    ("merger", "density", "match"),
    [
        ("{name: slerp, t: {mlp: 0.5}}", None, r"no part of \S+ is named, only mlp[^*]*\*"),
        ("{name: slerp, t: [0, 2]}", None, "less than or equal to 1"),
        ("{name: slerp, t: []}", None, "at least 1 item"),
        ("ties", [0.1, 1], "scope: tensor"),
        ("ties", [0.1, 0], "greater than 0"),
    ],
)
def test_values_by_layer_that_do_not_suit_are_refused(deep_models, tmp_path, merger, density, match):
    base, *models = deep_models
    said = [{"path": str(path), **({"density": density} if density else {})} for path in models]
    recipe = tmp_path / "merge.yaml"
    recipe.write_text(f"merger: {merger}\nbase: {base}\noutput: {tmp_path}/made\ninputs: {json.dumps(said)}\n")
    with pytest.raises(GymError, match=match):
        CliRunner().invoke(merge, [str(recipe)], catch_exceptions=False)


ELECTED = {"density": 1, "normalize": False}
THEIRS = {
    "karcher": (
        "{models: [a, b], base_model: c, parameters: {max_iter: 20}}",
        {"merger": {"name": "karcher", "max_iter": 20}, "inputs": ["a", "b", "c"]},
    ),
    "nuslerp": (
        "{models: [a, {model: b, parameters: {weight: [0, 1]}}, {model: c, parameters: {weight: 2}}], base_model: a}",
        {"merger": "slerp", "inputs": [{"path": "b", "weight": [0, 1]}, {"path": "c", "weight": 2}], "base": "a"},
    ),
    "dare_linear": (
        "{models: [{model: b}], parameters: {weight: 1, rescale: false}, base_model: a}",
        {
            "merger": {"name": "dare", "rescale": False, "rule": {"name": "task_arithmetic", "scale": 1}},
            "inputs": [{"path": "b", "weight": 1, "density": 1}],
            "base": "a",
        },
    ),
    "slerp": (
        "{models: [{model: b}, {model: a}], base_model: a, parameters: {t: [{filter: mlp, value: [1, 0]}, {value: 0.5}]}}",
        {"merger": {"name": "slerp", "t": {"mlp": [1, 0], "*": 0.5}}, "inputs": ["a", "b"]},
    ),
    "linear": (
        "{models: [{model: a, parameters: {weight: 2}}, {model: b}], parameters: {weight: 1, normalize: false}, dtype: float16}",
        {
            "merger": {"name": "weighted_mean", "normalize": False},
            "inputs": [{"path": "a", "weight": 2}, {"path": "b", "weight": 1}],
            "dtype": "fp16",
        },
    ),
    "ties": (
        (
            "{models: [a, {model: b, parameters: {density: [1, 0.1], weight: 1}}, {model: c, parameters: {weight: 2}}], "
            "base_model: a, dtype: float32, out_dtype: bfloat16}"
        ),
        {
            "merger": {"name": "ties", "density": 1, "scope": "tensor"},
            "inputs": [{"path": "b", "weight": 1, "density": [1, 0.1]}, {"path": "c", "weight": 2, "density": 1}],
            "base": "a",
            "dtype": "bf16",
        },
    ),
    "dare_ties": (
        "{models: [{model: b, parameters: {weight: 1, density: 0.5}}], base_model: a, parameters: {int8_mask: true}}",
        {
            "merger": {"name": "dare", "rule": {"name": "ties", **ELECTED}},
            "inputs": [{"path": "b", "weight": 1, "density": 0.5}],
            "base": "a",
        },
    ),
    "della": (  # which drops nothing where no density is said
        (
            "{slices: [{sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 2], parameters: {weight: 3}}]}], "
            "base_model: a, parameters: {weight: 1}}"
        ),
        {
            "merger": {"name": "della", "epsilon": 0.3, "rule": {"name": "ties", "density": 1}},
            "inputs": [{"stack": [{"path": "b", "layers": [0, 2]}], "weight": 3, "density": 1}],
            "base": "a",
        },
    ),
    "passthrough": (
        "{slices: [{sources: [{model: a, layer_range: [0, 2]}]}, {sources: [{model: b, layer_range: [1, 3]}]}]}",
        {
            "merger": "uniform_soup",
            "inputs": [{"stack": [{"path": "a", "layers": [0, 2]}, {"path": "b", "layers": [1, 3]}]}],
        },
    ),
    "breadcrumbs": (
        (
            "{models: [a, {model: b, parameters: {weight: 1, density: 0.5, gamma: 0.1}}, "
            "{model: c, parameters: {weight: 2, density: 0.5, gamma: 0.1}}], base_model: a}"
        ),
        {
            "merger": {"name": "breadcrumbs", "top": 0.1, "bottom": 0, "rule": {"name": "task_arithmetic", "scale": 1}},
            "inputs": [{"path": "b", "weight": 1, "density": 0.5}, {"path": "c", "weight": 2, "density": 0.5}],
            "base": "a",
        },
    ),
    "sce": (
        "{models: [{model: b}, {model: c}], parameters: {select_topk: 0.1}, base_model: a}",
        {"merger": {"name": "sce", "density": 0.1}, "inputs": ["b", "c"], "base": "a"},
    ),
    "della_linear": (
        "{models: [{model: b, parameters: {epsilon: 0.1}}], parameters: {weight: 1, density: 0.5, lambda: 0.7}, base_model: a}",
        {
            "merger": {"name": "della", "epsilon": 0.2, "rule": {"name": "task_arithmetic", "scale": 0.7}},
            "inputs": [{"path": "b", "weight": 1, "density": 0.5}],
            "base": "a",
        },
    ),
}


@pytest.mark.parametrize("method", THEIRS)
def test_files_of_mergekit_are_read(tmp_path, method):
    theirs, ours = THEIRS[method]
    (tmp_path / "theirs.yaml").write_text(f"{{merge_method: {method}, {theirs[1:]}\n")
    (tmp_path / "ours.yaml").write_text(json.dumps(ours))
    read = [load_merge(tmp_path / f"{name}.yaml", ["output=made"]) for name in ("theirs", "ours")]
    assert read[0] == read[1] and read[0].merger == read[1].merger


ONE_LAYER = {"sources": [{"model": "a", "layer_range": [0, 1]}]}


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("merge_method: nearswap\nmodels: []", r"theirs.yaml:2\n  merge_method: 'nearswap' is not there"),
        (
            "merge_method: della\nbase_model: a\nparameters: {epsilon: 0.1}\nmodels: [b, {model: c, parameters: {epsilon: 0.2}}]",
            r"theirs.yaml:5\n  models\[1\].parameters.epsilon: differs",
        ),
        ("merge_method: passthrough\nmodels: [a, b]", "`passthrough` takes one model"),
        (
            "merge_method: linear\nslices: [{sources: [a]}]",
            r"slices\[0\].sources\[0\]: is no mapping with `model`, `layer_range`",
        ),
        ("merge_method: linear\nslices: [{sources: []}]", r"slices\[0\]: is no mapping with `sources` alone"),
        (
            f"merge_method: linear\nparameters: {{weight: [0, 1]}}\nslices: {json.dumps(2 * [ONE_LAYER])}",
            r"parameters of several slices, or along each of them, are not there",
        ),
        (
            "merge_method: linear\nmodels: []\ntokenizer_source: union\ntokenizer: {source: base}",
            "tokenizer_source: says the same as `tokenizer`",
        ),
        (
            "merge_method: linear\nmodels: []\ntokenizer: {tokens: {a: {sorce: b}}}",
            r"tokenizer.tokens.a.sorce: unknown",
        ),
        ("merge_method: linear\nmodels: [a]", r"models\[0\].parameters.weight: is required"),
        ("merge_method: ties\nmodels: []\nparameters: {rescale: true}", "`ties` has False"),
        ("merge_method: ties\nmodels: []\nparameters: {gamma: 1}", r"theirs.yaml:4\n  parameters.gamma: unknown key"),
        (
            "merge_method: slerp\nmodels: [a, b]\nparameters: {t: 2}",
            r"theirs.yaml:4\n  parameters.t: .* less than or equal to 1",
        ),
        ("merge_method: slerp\nmodels: [a, b+c]\nparameters: {t: 1}", r"models\[1\]: `b\+c` is a model and an adapter"),
        ("models: []", "did you mean `inputs`"),
        ("base_model: tiny", "did you mean `base`"),
        ("merger: {name: ties, lambda: 1}", "did you mean `scale`"),
        ("merger: {name: breadcrumbs, gamma: 0.1}", "did you mean `top`"),
    ],
)
def test_what_is_not_there_of_mergekit_is_named(tmp_path, said, match):
    (tmp_path / "theirs.yaml").write_text(f"output: made\n{said}\n")
    with pytest.raises(RecipeError, match=match):
        load_merge(tmp_path / "theirs.yaml")


def test_a_file_of_mergekit_is_merged_in_the_format_that_it_asks_for(deep_models, tmp_path):
    one, other, _ = deep_models
    said = {"merge_method": "slerp", "models": [{"model": str(other)}, {"model": str(one)}], "base_model": str(one)}
    said |= {"parameters": {"t": [{"filter": "mlp", "value": [0, 1]}, {"value": 0.25}]}, "dtype": "bfloat16"}
    (tmp_path / "theirs.yaml").write_text(json.dumps(said))
    CliRunner().invoke(merge, [str(tmp_path / "theirs.yaml"), f"output={tmp_path}/made"], catch_exceptions=False)
    made, *models = (load_file(path / "model.safetensors") for path in (tmp_path / "made", one, other))
    for name, weight in made.items():
        x = torch.stack([model[name].flatten() for model in models]).double().numpy()
        wanted = torch.from_numpy(oracles.slerp(x, t=deep(name, {"mlp": [0, 1], "*": 0.25}))).bfloat16()
        assert weight.dtype == torch.bfloat16
        torch.testing.assert_close(weight.flatten(), wanted, rtol=1e-2, atol=1e-6)
    told = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype="auto")
    assert told.dtype == torch.bfloat16


def source(path: Path, *layers: int) -> dict:
    return {"model": str(path), "layer_range": layers}


def sliced(tmp_path: Path, base: Path | None, *slices, **said) -> Path:
    """Merge slices as files of mergekit have them."""
    told = {"slices": [{"sources": each} for each in slices], **({"base_model": str(base)} if base else {}), **said}
    (tmp_path / "theirs.yaml").write_text(json.dumps(told))
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
    CliRunner().invoke(merge, [str(tmp_path / "theirs.yaml"), f"output={tmp_path}/made"], catch_exceptions=False)
    return tmp_path / "made"


def test_layers_of_several_models_make_one_that_computes_what_they_do(deep_models, tmp_path):
    one, other = (shutil.copytree(path, tmp_path / path.name / "model") for path in deep_models[:2])
    told = json.loads((other / "config.json").read_text())
    for path in (one, other):  # a list that says something of each layer, and which transformers checks
        (path / "config.json").write_text(json.dumps({**told, "layer_types": ["full_attention"] * 3}))
    made = sliced(tmp_path, None, [source(one, 0, 2)], [source(other, 0, 3)], merge_method="passthrough")
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (one, other, made)]
    wanted = models[0]
    wanted.config.num_hidden_layers, wanted.config.layer_types = 5, ["full_attention"] * 5
    wanted.model.layers = torch.nn.ModuleList([*models[0].model.layers[:2], *models[1].model.layers])
    wanted.model.norm, wanted.lm_head = models[1].model.norm, models[1].lm_head
    ids = torch.arange(20)[None] + 5
    with torch.no_grad():
        assert torch.equal(models[2](ids, use_cache=False).logits, wanted(ids, use_cache=False).logits)
    report = json.loads((made / "merge.json").read_text())
    assert [each["layers"] for each in report["inputs"][0]["stack"]] == [[0, 2], [0, 3]]
    assert {Path(file).parent for file in report["inputs"][0]["sha256"]} == {one, other}


def test_slices_that_are_whole_models_are_these_models(deep_models, tmp_path):
    base, *models = deep_models
    said = {"merge_method": "ties", "parameters": {"density": 0.5, "weight": [0.2, 1]}}
    made = sliced(tmp_path, base, [source(path, 0, 3) for path in deep_models], **said)
    found = load_file(made / "model.safetensors")
    (tmp_path / "plain.yaml").write_text(
        json.dumps({**said, "models": [str(path) for path in models], "base_model": str(base)})
    )
    CliRunner().invoke(merge, [str(tmp_path / "plain.yaml"), f"output={tmp_path}/plain"], catch_exceptions=False)
    wanted = load_file(tmp_path / "plain/model.safetensors")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("slices", "config", "match"),
    [
        ([(1, 0, 3), (0, 1, 4)], {}, "there are no layers 1 to 4: it has 3"),
        ([(1, 0, 2), (1, 2, 2)], {}, "there are no layers 2 to 2"),
        ([(1, 0, 2), (1, 1, 3)], {"mlp_only_layers": [1]}, "`mlp_only_layers` says by number"),
        ([(1, 0, 2), (1, 1, 3)], {"num_hidden_layers": None}, "cannot be counted"),
    ],
)
def test_layers_that_make_no_model_are_refused(deep_models, tmp_path, slices, config, match):
    told = json.loads((deep_models[1] / "config.json").read_text())
    (deep_models[1] / "config.json").write_text(json.dumps(told | config))
    with pytest.raises(GymError, match=match):
        sliced(
            tmp_path, None, *([source(deep_models[n], *layers)] for n, *layers in slices), merge_method="passthrough"
        )
    with pytest.raises(GymError, match="which layers of the base"):
        sliced(tmp_path, deep_models[0], [source(deep_models[2], 0, 2)], merge_method="ties", parameters={"weight": 1})
    assert not (tmp_path / "made").exists()


def test_inputs_may_be_models_of_the_hub(bench, tmp_path, monkeypatch):
    """Those who merge most merge what others published; a folder of the name comes first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gym_deltasoup.run_recipe.artifact_at", lambda name, key: Artifact(bench.model(int(name[-1]))))
    shutil.copytree(bench.model(0), tmp_path / "any/tuned-1")
    said = {"merger": "weighted_mean", "inputs": ["any/tuned-1", "other/tuned-2"], "output": "made"}
    (tmp_path / "merge.yaml").write_text(json.dumps(said))
    told = json.loads(CliRunner().invoke(merge, ["merge.yaml", "--json"], catch_exceptions=False).output)
    assert [each["name"] for each in told["inputs"]] == said["inputs"]
    assert [each["path"] for each in told["inputs"]] == ["any/tuned-1", str(bench.model(2))]


def test_options_are_set_from_the_command_line(recipe):
    said = load_merge(recipe, ["merger.rule={name: krum}", "hostile=2", "byzantine_threshold=0.2"])
    assert said.merger.model_dump()["rule"] == {} and said.hostile == 2 and said.inputs[1].name == "user-1"
    assert load_merge(recipe, ["merger={name: ties, density: 0.5}"]).merger.model_dump()["density"] == 0.5
    assert type(load_merge(recipe, ["merger.rule=median"]).merger).__name__ == "NNM"
    said = load_merge(recipe, ["merger.rule.name=multi_krum", "merger.rule.selected=2"]).merger
    assert isinstance(said, NNM) and said.rule == MultiKrum(selected=2)
    (recipe.parent / "server.yaml").write_text("base_model: tiny\nmethod: multi_krum\n")
    assert load_server(recipe.parent / "server.yaml", ("method.selected=2",)).method == MultiKrum(selected=2)


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("merger=tise", "ties"),
        ("merger.ruel=median", "unknown key"),
        ("inputs=[]", "at least 1 item"),
        ("byzantine_threshold=0.5", "less than 0.5"),
        ("output", "not key=value"),
        ("inputs.0.weight=2", "inputs: is a list"),
        ("outputs=x", "did you mean `output`"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(recipe, override, match):
    with pytest.raises(GymError, match=match):
        load_merge(recipe, [override])


def listed(command: click.Command) -> dict[str, str]:
    """Return the keys that help lists, each with its default as it is typed."""
    told = CliRunner().invoke(command, ["--help"], terminal_width=80).output.partition("KEY=VALUE:\n")[2]
    return dict(re.findall(r"^  ([\w.]+)=?(\S*)", told, re.MULTILINE))


def test_help_lists_every_key_with_a_default_that_can_be_typed(recipe):
    typed = [f"{key}={value}" for key, value in listed(merge).items() if value and key != "merger"]
    assert listed(merge).keys() == MergeRecipe.model_fields.keys() and load_merge(recipe, typed) == load_merge(recipe)
    keys = listed(soup.commands["serve"])
    assert {key.partition(".")[0] for key in keys} == SoupServerConfig.model_fields.keys() and "limits.uploads" in keys
    said = tuple(f"{key}={value}" for key, value in keys.items() if value)
    assert load_server(None, ("base_model=tiny", *said)) == load_server(None, ("base_model=tiny",)) and len(said) > 30


def test_a_wrong_line_is_named(recipe):
    recipe.write_text(recipe.read_text().replace("merger: nnm", "merger: {name: nnm, size: 3}"))
    with pytest.raises(RecipeError, match=r"soup\.yaml:1"):
        load_merge(recipe)


def test_a_function_of_the_recipe_scores_candidates(recipe, bench, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    models = f"inputs=[{bench.model(0)}, {bench.model(1)}]"
    asked = [str(recipe), "merger=greedy_soup", "evaluate=test_merge_command:scored", models]
    found = CliRunner().invoke(merge, asked, catch_exceptions=False)
    assert "merged 2 inputs with greedy_soup" in found.output
    with pytest.raises(RecipeError, match="there is no function `nowhere:nothing`"):
        CliRunner().invoke(merge, [str(recipe), "evaluate=nowhere:nothing", "output=x"], catch_exceptions=False)


def unreachable(artifact: Artifact) -> float:
    raise ConnectionRefusedError("the judge is gone")


def test_a_function_that_fails_is_no_trouble_of_the_disk(recipe, bench, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    asked = [str(recipe), "merger=greedy_soup", "evaluate=test_merge_command:unreachable", f"inputs=[{bench.model(0)}]"]
    with pytest.raises(GymError, match=r"(?s)evaluate: .*ConnectionRefusedError: the judge is gone"):
        CliRunner().invoke(merge, asked, catch_exceptions=False)


def die(artifact: Artifact) -> float:
    """Kill the process, as a machine that loses power does: in the middle of a merge, a candidate is on the disk."""
    assert (artifact.path / "model.safetensors").is_file()
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def test_killed_it_leaves_nothing_under_the_final_name(recipe, bench):
    """And the next merge takes away what was left."""
    pid = os.fork()
    if pid == 0:
        try:
            from gym_deltasoup import GreedySoup, Input, merge_artifacts

            inputs = [Input(bench.model(seed)) for seed in range(2)]
            merge_artifacts(GreedySoup(), inputs, bench.root / "made", evaluate=die)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert not (bench.root / "made").exists() and [*bench.root.glob(".made.*")]
    CliRunner().invoke(merge, [str(recipe)], catch_exceptions=False)
    assert (bench.root / "made/merge.json").is_file() and not [*bench.root.glob(".made.*")]


@pytest.mark.skipif(os.name != "posix", reason="limits what may be written to a file")
def test_a_full_disk_is_named_and_leaves_nothing(recipe, bench, capfd):
    """No file may grow: as on a full disk, writing fails in the middle."""
    before, most = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, most[1]))
    try:
        assert cli.run(["merge", str(recipe)]) == FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, before)
    told = capfd.readouterr().err
    assert f"error: {bench.root}/made\n  the merged model could not be written: File too large" in told
    assert "-> make room" in told and "run.json" not in told
    assert not [*bench.root.glob("*made*")]


def test_recipes_of_the_readme_are_valid(tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    merges = [block for block in blocks if "merger" in parse_yaml(block, "README.md").data]
    for number, block in enumerate(merges):
        (tmp_path / f"{number}.yaml").write_text(block)
        assert load_merge(tmp_path / f"{number}.yaml").inputs
    assert merges


def test_a_file_of_merges_that_is_read_as_a_recipe_names_the_command(tmp_path):
    """With the entry point that the package declares, whatever is installed."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    file = tmp_path / "soup.yaml"
    file.write_text("merger: mean\nbase: tiny\ninputs: [one, two]\noutput: out\n")
    with installed_in(tmp_path):
        write_distribution(tmp_path, "gym-soups", {"gym.advice": project["entry-points"]["gym.advice"]}, {})
        forget_installed()
        with pytest.raises(RecipeError) as caught:
            load_recipe(file)
    told = {problem.key: problem.fix for problem in caught.value.problems}
    assert told["merger"] == told["inputs"] == "run `gym merge FILE`"
