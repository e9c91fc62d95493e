"""Directories are merged as vectors are: models, adapters and deltas, in little memory, with what belongs together alone."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from soup_models import LAYER
from torch import Tensor
from transformers import AutoModelForCausalLM

import gym_deltasoup as soup
from gym_adapters import LoRA
from gym_adapters.lora_checkpoint import LoraFile, read_lora, write_lora
from gym_adapters.lora_checkpoint import artifact as adapter_artifact
from gym_core import Artifact, BusyError, GymError
from gym_core.record import RunRecord
from gym_deltasoup import Input, merge_artifacts, merge_vectors
from gym_deltasoup.sources.files import Files, Weights
from gym_deltasoup.sources.lora import factored
from gym_deltasoup.sources.tensor_slices import tensors_of
from gym_testkit.bench import fingerprint
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.memory.memory_meter import Meter


@pytest.fixture
def base(bench) -> Path:
    return bench.model()


@pytest.fixture
def tuned(bench, base) -> Callable[..., Path]:
    """Return what writes a model that differs a little from the base, or as `change(name, weight)` says."""

    def make(seed: int, change: Callable[[str, Tensor], Tensor] | None = None) -> Path:
        path = shutil.copytree(base, bench.path(f"tuned-{seed}"))
        draw = torch.Generator().manual_seed(seed)
        weights = load_file(path / "model.safetensors")
        for name, weight in weights.items():
            moved = weight + 0.02 + 0.01 * torch.randn(weight.shape, generator=draw)
            weights[name] = moved if change is None else change(name, weight)
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        return path

    return make


def flat(path: Path) -> Tensor:
    """Return all weights of a model as a vector."""
    return torch.cat([weight.flatten().float() for _, weight in sorted(load_file(path / "model.safetensors").items())])


@pytest.mark.parametrize(
    "merger",
    [soup.UniformSoup(), soup.Krum(), soup.NNM(), soup.ByzantineRobust(), soup.TIES(), soup.GeometricMedian()],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("with_base", [True, False])
def test_models_are_merged_as_vectors_are(merger, with_base, base, tuned, tmp_path):
    if merger.needs_base and not with_base:
        pytest.skip("it combines changes")
    models = [tuned(seed) for seed in range(5)]
    before = [fingerprint(model) for model in models]
    name = str(base) if with_base else None
    made = merge_artifacts(merger, [Input(each) for each in models], tmp_path / "made", base=name, most=3000)
    zero = flat(base) if with_base else 0 * flat(base)
    hostile = made.tolerated_byzantine
    wanted = merge_vectors(merger, torch.stack([flat(each) - zero for each in models]), hostile).vector + zero
    torch.testing.assert_close(flat(made.artifact.path), wanted, rtol=1e-5, atol=1e-6)
    assert [fingerprint(model) for model in models] == before
    assert open_artifact(Artifact.read(made.artifact.path)).model(torch.tensor([[5, 3]])).logits.isfinite().all()


def test_tensors_of_a_scope_of_their_own_are_told_apart(base, tuned, tmp_path):
    """SLERP of each tensor is that of vectors of this tensor."""
    models = [tuned(seed, lambda name, weight: torch.randn(weight.shape)) for seed in (1, 2)]
    made = merge_artifacts(soup.SLERP(t=0.3), [Input(each) for each in models], tmp_path / "made")
    first, second, found = (load_file(each / "model.safetensors") for each in (*models, made.artifact.path))
    for name in found:
        pair = torch.stack([first[name].flatten(), second[name].flatten()])
        torch.testing.assert_close(found[name].flatten(), merge_vectors(soup.SLERP(t=0.3), pair).vector)


def test_the_order_of_the_files_changes_no_bit(base, tuned, tmp_path):
    inputs = [Input(tuned(seed), f"user-{seed}") for seed in range(4)]
    made = [
        merge_artifacts(soup.ByzantineRobust(), each, tmp_path / str(number), base=str(base)).artifact.path
        for number, each in enumerate((inputs, inputs[::-1], inputs[2:] + inputs[:2]))
    ]
    prints = [fingerprint(path, "model.safetensors") for path in made]
    assert prints[0] == prints[1] == prints[2]


def test_provenance_says_what_was_merged(base, tuned, tmp_path):
    models = [tuned(seed) for seed in range(4)]
    (models[0] / "artifact.json").write_text(json.dumps({"path": ".", "details": {"base": str(base)}}))
    inputs = [Input(each, f"user-{number}") for number, each in enumerate(models)]
    made = merge_artifacts(soup.NNM(), inputs, tmp_path / "made", base=str(base), hostile=1)
    told = json.loads((made.artifact.path / "merge.json").read_text())
    assert told["merger"]["name"] == "nnm" and told["merger"]["options"]["rule"] == {}
    assert told["tolerated_byzantine"] == told["hostile"] == 1 and told["evaluation"] == "not evaluated"
    assert [each["base"] for each in told["inputs"]] == ["name", "not said", "not said", "not said"]
    hashes = fingerprint(models[2], ".safetensors")
    assert told["inputs"][2]["sha256"] == hashes and told["inputs"][2]["name"] == "user-2"
    card = (made.artifact.path / "README.md").read_text()
    assert "Merged with nnm" in card and "user-3" in card and "not evaluated" in card
    read = Artifact.read(made.artifact.path)
    assert read.details["base_fingerprint"] == told["base"]["fingerprint"] and read.kind == "model"
    assert not [*made.artifact.path.glob(".*")], "what was needed to make it is left"


def test_bf16_is_merged_in_fp32_and_rounded_once(base, tuned, tmp_path):
    models = []
    for seed in range(4):
        path = tuned(seed)
        weights = {name: each.bfloat16() for name, each in load_file(path / "model.safetensors").items()}
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        models.append(path)
    made = merge_artifacts(soup.UniformSoup(), [Input(each) for each in models], tmp_path / "made")
    found = load_file(made.artifact.path / "model.safetensors")
    assert {each.dtype for each in found.values()} == {torch.bfloat16}
    wanted = torch.stack([flat(each) for each in models]).double().mean(0).float().bfloat16().float()
    assert torch.equal(flat(made.artifact.path), wanted)


def test_the_greedy_soup_scores_models_on_disk(base, tuned, tmp_path):
    models = [tuned(seed, lambda name, weight, seed=seed: weight + (seed - 1) * 0.1) for seed in range(3)]
    asked = []

    def near(artifact: Artifact) -> float:
        asked.append(artifact.path)
        return -float((flat(artifact.path) - flat(base)).norm())

    inputs = [Input(each, name) for each, name in zip(models, "abc", strict=True)]
    made = merge_artifacts(soup.GreedySoup(), inputs, tmp_path / "made", evaluate=near)
    assert made.report["kept"] == ["b"] and len(asked) == 5
    torch.testing.assert_close(flat(made.artifact.path), flat(base))
    with pytest.raises(GymError, match="asks how good a candidate is"):
        merge_artifacts(soup.GreedySoup(), inputs, tmp_path / "other")


def test_broken_models_are_left_out_and_named_or_refused(base, tuned, tmp_path):
    inputs = [Input(tuned(seed), f"user-{seed}") for seed in range(4)]
    bad = Input(tuned(9, lambda name, weight: torch.full_like(weight, math.inf)), "mallory")
    made = merge_artifacts(soup.ByzantineRobust(), [bad, *inputs], tmp_path / "a", base=str(base), hostile=1)
    assert made.report["excluded"] == {"mallory": "infinity"}
    alone = merge_artifacts(soup.ByzantineRobust(), inputs, tmp_path / "b", base=str(base), hostile=1)
    assert torch.equal(flat(made.artifact.path), flat(alone.artifact.path))
    with pytest.raises(GymError, match="mallory holds infinity, and uniform_soup is no robust merger"):
        merge_artifacts(soup.UniformSoup(), [bad, *inputs], tmp_path / "c")
    assert not (tmp_path / "c").exists() and not [*tmp_path.glob(".c.*")]


def changed(path: Path, name: str, change: Callable[[dict], None]) -> None:
    told = json.loads((path / name).read_text())
    change(told)
    (path / name).write_text(json.dumps(told))


def retyped(path: Path, dtype: torch.dtype) -> None:
    weights = {name: each.to(dtype) for name, each in load_file(path / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def test_what_does_not_belong_together_is_refused_by_name(bench, base, tuned, tmp_path):
    def refused(match: str, other: Path, named: str | None = None) -> None:
        with pytest.raises(GymError, match=match):
            merge_artifacts(soup.UniformSoup(), [Input(first, "a"), Input(other, "b")], tmp_path / "made", base=named)
        assert not (tmp_path / "made").exists()

    first = tuned(0)
    other = tuned(1)
    retyped(other, torch.float16)
    refused("of b is in float16, and that of a in float32", other)
    other = tuned(2)
    weights = load_file(other / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    refused("a has model.norm.weight, and b has not", other)
    larger = bench.model_of(32, 48)
    changed(larger, "config.json", lambda told: told.update(intermediate_size=64))
    refused(r"mlp.down_proj.weight of b has the shape \[32, 48\]", larger)
    other = tuned(3)
    changed(other, "config.json", lambda told: told.update(rms_norm_eps=1e-5))
    refused("b has another configuration than a: `rms_norm_eps` differs", other)
    other = tuned(4)
    changed(other, "tokenizer.json", lambda told: told["added_tokens"].pop())
    refused("b has another tokenizer than a: `added_tokens` differs", other)
    other = tuned(5)
    (other / "artifact.json").write_text(json.dumps({"path": ".", "details": {"base": str(bench.model(7))}}))
    refused("b belongs to another base", other, str(base))
    other = tuned(6)
    (other / "artifact.json").write_text(json.dumps({"path": ".", "details": {"quantization": {"bits": 4}}}))
    refused("b is quantized", other)
    other = tuned(7)
    file = other / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refused("no sound file of safetensors", other)
    refused("there is no such folder", tmp_path / "nowhere")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    with pytest.raises(BusyError, match="there already"):
        merge_artifacts(soup.UniformSoup(), [Input(first)], tmp_path / "there")
    for held, named in ((first, None), (base, str(base))):
        with pytest.raises(GymError, match=rf"\n  output: the output lies in {held}"):
            merge_artifacts(soup.UniformSoup(), [Input(first)], held / "a/b", base=named)
        assert not (held / "a").exists()


@pytest.fixture
def adapters(base, tmp_path) -> list[Path]:
    """Return four adapters: the first two do the same with other factors, the third its opposite, the fourth more."""
    draw = torch.Generator().manual_seed(0)
    name = "model.layers.0.self_attn.q_proj"
    first, second = torch.randn(2, 32, generator=draw), torch.randn(32, 2, generator=draw)
    turn = torch.linalg.qr(torch.randn(2, 2, generator=draw)).Q * 3
    factors = [
        (first, second),
        (turn @ first, second @ turn.inverse()),
        (first, -second),
        (torch.randn(2, 32, generator=draw), torch.randn(32, 2, generator=draw)),
    ]
    paths = []
    for number, (low, high) in enumerate(factors):
        lora = LoraFile(2, 0.5, {name: {"lora_A": low, "lora_B": high}})
        paths.append(write_lora(tmp_path / f"adapter-{number}", str(base), lora))
    return paths


SUM = soup.TaskArithmetic(scale=1.0)


def product(path: Path) -> Tensor:
    """Return what the one layer of an adapter adds to its weight."""
    lora = read_lora(path)
    halves = next(iter(lora.pairs.values()))
    return lora.scaling * halves["lora_B"] @ halves["lora_A"]


def test_adapters_are_merged_as_products(base, adapters, tmp_path):
    inputs = [Input(each) for each in adapters]
    same = merge_artifacts(soup.UniformSoup(), inputs[:2], tmp_path / "same", base=str(base), most=100)
    torch.testing.assert_close(product(same.artifact.path), product(adapters[0]), rtol=1e-4, atol=1e-4)
    assert same.report["rank"] == 2 and same.report["truncation_error"] < 1e-5
    none = merge_artifacts(soup.UniformSoup(), [inputs[0], inputs[2]], tmp_path / "none", base=str(base))
    assert float(product(none.artifact.path).norm()) < 1e-5
    wanted = torch.stack([product(each) for each in adapters[1:]]).median(0).values
    found = merge_artifacts(soup.Median(), inputs[1:], tmp_path / "median", base=str(base), hostile=1, rank=32)
    torch.testing.assert_close(product(found.artifact.path), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "merger", "weights", "said"),
    [
        ("svd", SUM, (0.7, -0.4), {"svd_rank": 3}),
        ("cat", SUM, (0.7, 0.4), {}),
        ("ties_svd", soup.TIES(scope="tensor", density=0.5), (1.0, 1.0), {"svd_rank": 3, "density": 0.5}),
        (
            "magnitude_prune_svd",
            soup.Breadcrumbs(top=0, bottom=0.5, rule=SUM),
            (0.7, 0.4),
            {"svd_rank": 3, "density": 0.5},
        ),
    ],
)
def test_adapters_are_merged_as_peft_merges_them(base, adapters, tmp_path, kind, merger, weights, said):
    paths = [adapters[0], adapters[3]]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), paths[0], adapter_name="a")
    model.load_adapter(paths[1], adapter_name="b")
    model.add_weighted_adapter(["a", "b"], list(weights), "made", combination_type=kind, **said)
    wanted = model.get_submodule(f"base_model.model.{LAYER}").get_delta_weight("made")
    inputs = [Input(path, weight=None if weights == (1, 1) else w) for path, w in zip(paths, weights, strict=True)]
    rank = said.get("svd_rank", 4)
    made = merge_artifacts(merger, inputs, tmp_path / "made", base=str(base), rank=rank)
    torch.testing.assert_close(product(made.artifact.path), wanted, rtol=1e-4, atol=1e-5)


def test_the_error_of_a_rank_is_that_of_the_singular_values_left_out(base, adapters, tmp_path):
    inputs = [Input(adapters[0]), Input(adapters[3])]
    mean = (product(adapters[0]) + product(adapters[3])) / 2
    values = torch.linalg.svdvals(mean.double())
    for rank in (1, 2, 3):
        made = merge_artifacts(soup.UniformSoup(), inputs, tmp_path / str(rank), base=str(base), rank=rank)
        left = float(values[rank:].norm() / values.norm())
        assert made.report["truncation_error"] == pytest.approx(left, rel=1e-3)
        missed = (product(made.artifact.path) - mean).norm() / mean.norm()
        assert float(missed) == pytest.approx(left, rel=1e-3)
        assert f"{rank}, {left:.3g} of the norm" in (made.artifact.path / "README.md").read_text()


def test_large_matrices_are_factored_nearly_as_well():
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(1100, 8, generator=draw) @ torch.randn(8, 1200, generator=draw)
    found = factored(iter([("layer", matrix + 1e-3 * torch.randn(1100, 1200, generator=draw))]), 8)
    assert found.error < 1e-3 and found.worst[0] == "layer"


def test_a_merged_adapter_opens_and_adds_what_it_says(base, adapters, tmp_path):
    made = merge_artifacts(
        soup.UniformSoup(), [Input(each) for each in adapters[:2]], tmp_path / "made", base=str(base)
    )
    adapted = open_artifact(Artifact.read(made.artifact.path))
    weights = dict(adapted.merged_weights().weights)
    name = "model.layers.0.self_attn.q_proj.weight"
    wanted = load_file(base / "model.safetensors")[name] + product(adapters[0])
    torch.testing.assert_close(weights[name], wanted, rtol=1e-4, atol=1e-4)


def test_adapters_that_are_something_else_are_refused(bench, base, adapters, tuned, tmp_path):
    def refused(match: str, other: Path, named: str | None = None) -> None:
        with pytest.raises(GymError, match=match):
            inputs = [Input(adapters[0], "a"), Input(other, "b")]
            merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made", base=named)

    halves = {"lora_A": torch.ones(2, 32), "lora_B": torch.ones(32, 2)}
    elsewhere = {"model.layers.1.self_attn.q_proj": halves}
    refused("differ in model.layers.0", write_lora(tmp_path / "c", str(base), LoraFile(2, 1.0, elsewhere)))
    refused("b is of kind model, and a of kind adapter", tuned(1))
    pairs = {"model.layers.0.self_attn.q_proj": halves}
    refused("another base", write_lora(tmp_path / "d", str(bench.model(7)), LoraFile(2, 1.0, pairs)), str(base))
    changed(adapters[1], "adapter_config.json", lambda told: told.update(use_dora=True))
    refused(r"\n  inputs: only a plain LoRA.* use_dora\n", adapters[1])


def test_deltas_are_merged_over_their_base(bench, base, tuned, tmp_path):
    from gym_bitdelta import DeltaQuant

    deltas = []
    for seed in range(3):
        path = tuned(seed)
        source = Artifact(path, details={"base": str(base)})
        run = replace_output(bench.trained(path, f"run-{seed}"))
        options = DeltaQuant(method="int8", distill_steps=0, holdout_samples=4, calibration_samples=4, calibrate=False)
        deltas.append(options.build().quantize(run, source, tmp_path / f"delta-{seed}"))
    changes = []
    for each in deltas:
        weights = each and dict(open_artifact(each).model.state_dict())
        changes.append(weights["model.layers.1.mlp.up_proj.weight"])
    inputs = [Input(each.path) for each in deltas]
    made = merge_artifacts(soup.Median(), inputs, tmp_path / "made", base=str(base), hostile=1)
    found = load_file(made.artifact.path / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    torch.testing.assert_close(found, torch.stack(changes).median(0).values, rtol=1e-5, atol=1e-6)
    assert made.artifact.kind == "model" and not [*made.artifact.path.glob("**/*.fp32")]
    with pytest.raises(GymError, match="another base"):
        merge_artifacts(soup.Median(), inputs, tmp_path / "other", base=str(bench.model(5)))
    with pytest.raises(GymError, match="none is named"):
        merge_artifacts(soup.Median(), inputs, tmp_path / "other")
    scaled = {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}
    for number, each in enumerate(deltas):
        replace(each, details={**each.details, "config": scaled}).record()
        if number == 0:
            with pytest.raises(GymError, match=r"another configuration than .*: `rope_parameters` differs"):
                merge_artifacts(soup.Median(), inputs, tmp_path / "other", base=str(base))
    made = merge_artifacts(soup.Median(), inputs, tmp_path / "scaled", base=str(base))
    said = open_artifact(made.artifact).model.config
    assert said.rope_parameters["factor"] == 2.0 and said.hidden_size == 32, "the result computes as its inputs do"


def test_adapters_that_were_trained_with_other_positions_are_not_merged(base, adapters, tmp_path):
    lora = LoRA(rank=2, target_modules=("q_proj",))
    for path, factor in zip(adapters[:2], (1.0, 2.0), strict=True):
        made = adapter_artifact(lora, path, str(base))
        replace(made, details={**made.details, "config": {"rope_parameters": {"factor": factor}}}).record()
    with pytest.raises(GymError, match=r"another configuration than .*: `rope_parameters` differs"):
        merge_artifacts(soup.UniformSoup(), [Input(each) for each in adapters[:2]], tmp_path / "made")


def replace_output(run):
    return replace(run, record=RunRecord(run.output / "run.json"))


def test_memory_is_that_of_a_chunk_of_each_input(tmp_path):
    """Sixteen inputs of one tensor of 2 MB, 32 MB together, with distances and a sort, in a fifth of that."""
    size, paths = 2**19, []
    for number in range(16):
        path = tmp_path / str(number)
        path.mkdir()
        save_file({"w": torch.randn(1, size)}, path / "model.safetensors")
        paths.append(path)
    rows = [Weights(tensors_of(path), None) for path in paths]

    def merged(most: int) -> Tensor:
        from gym_deltasoup.merging.rule import planned

        updates = Files(rows, [str(path) for path in paths], {"w": (1, size)}, has_base=True, most=most)
        plan = planned(soup.ByzantineRobust(), updates, 4)
        return torch.stack([plan.combine(chunk).sum() for chunk in updates.chunks()]).sum()

    merged(2**16)
    meter = Meter(torch.device("cpu"))
    found = merged(2**16)
    assert meter.peak() < 32e6 / 5, f"{meter.peak() / 1e6:.1f} MB"
    torch.testing.assert_close(found, merged(2**24), rtol=1e-3, atol=1e-1)
