"""Loading models: safetensors or nothing, and no foreign code without consent."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import make_run, same
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers.utils import logging

from gym_core import GymError, RecipeError
from gym_testkit import families
from gym_torch import Transformers
from gym_torch.model import mapped_weights
from gym_torch.model.loading import LoadedModel, load_frozen
from gym_torch.packing import PADDED


@pytest.fixture
def copy(model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_path, tmp_path / "model"))


def load(path: Path, output: Path, precision: str = "fp32", **options: Any) -> LoadedModel:
    run = make_run(path, output, sections={"model": Transformers(path=str(path), **options)}, precision=precision)
    loaded: LoadedModel = run.recipe.model.build(run=run)
    return loaded


def edit(path: Path, **values: Any) -> None:
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | values))


def test_threads_that_load_at_once_leave_transformers_as_it_was(model_path: Path) -> None:
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: mapped_weights.load(model_path), range(12)))
    assert PreTrainedModel.tie_weights is before
    assert not any(held.is_meta for model in made for held in model.parameters())


def test_weights_are_those_of_the_file(copy: Path, tmp_path: Path) -> None:
    loaded = load(copy, tmp_path / "run")
    held = dict(loaded.model.named_parameters())
    assert same({name: held[name].detach() for name in held}, load_file(copy / "model.safetensors"))
    assert (loaded.path, loaded.name, loaded.precision) == (copy, str(copy), "fp32")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_a_pickle_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    (copy / "model.safetensors").rename(copy / name)
    with pytest.raises(GymError, match="pickle") as caught:
        load(copy, tmp_path / "run")
    assert name in str(caught.value)


def test_an_index_that_leads_to_a_pickle_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").rename(copy / "evil.bin")
    (copy / "other.safetensors").touch()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": "evil.bin"}}))
    with pytest.raises(GymError, match=r"evil\.bin"):
        load(copy, tmp_path / "run")


def test_an_index_that_leads_elsewhere_is_refused(copy: Path, tmp_path: Path) -> None:
    names = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(names))
    with pytest.raises(GymError, match=r"\.\./model\.safetensors"):
        load(copy, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", '{"architectures": ["Qwen3ForCa', "not JSON"),
        ("config.json", "[1]", "expected an object, not list"),
        ("config.json", '{"model_type": 3}', "cannot be loaded"),
        ("config.json", '{"model_type": "qwen3", "num_hidden_layers": {}}', "cannot be loaded"),
        ("model.safetensors.index.json", "[1, 2]", "expected an object, not list"),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}', "`weight_map` names no files"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "`weight_map` names no files"),
        ("model.safetensors.index.json", '{"weight_map', "not JSON"),
        ("tokenizer.json", '{"model": {}}', "not a tokenizer"),
        ("tokenizer.json", '{"model": ', "not a tokenizer"),
    ],
)
def test_damaged_files_of_a_model_are_errors_of_four_lines(
    copy: Path, tmp_path: Path, name: str, content: str, why: str
) -> None:
    (copy / name).write_text(content)
    with pytest.raises(GymError, match=why) as caught:
        load(copy, tmp_path / "run")
    assert str(copy) in str(caught.value) and str(caught.value).count("\n") <= 3


def test_a_missing_shard_is_named(copy: Path, tmp_path: Path) -> None:
    names = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(names))
    with pytest.raises(GymError, match=r"model-00002-of-00002\.safetensors is missing"):
        load(copy, tmp_path / "run")


def test_damaged_weights_are_an_error_and_not_a_traceback(copy: Path, tmp_path: Path) -> None:
    data = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(data[: len(data) // 2])
    before = logging.get_verbosity()
    with pytest.raises(GymError, match="cannot be loaded"):
        load(copy, tmp_path / "run")
    assert logging.get_verbosity() == before, "transformers would be silent from here on"


def test_weights_that_are_not_there_are_never_made_up(copy: Path, tmp_path: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(GymError, match=r"missing weights: model\.layers\.0\.mlp\.up_proj\.weight"):
        load(copy, tmp_path / "run")


def test_weights_that_are_not_finite_are_named(copy: Path, tmp_path: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(GymError, match=r"not finite: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(copy, tmp_path / "run")


def test_weights_of_another_shape_are_refused(copy: Path, tmp_path: Path) -> None:
    edit(copy, intermediate_size=48)
    with pytest.raises(GymError, match="another shape than config"):
        load(copy, tmp_path / "run")


def test_weights_that_the_configuration_has_no_place_for_are_refused(copy: Path, tmp_path: Path) -> None:
    edit(copy, num_hidden_layers=1, max_window_layers=1)
    with pytest.raises(GymError, match=r"no place for: model\.layers\.1\."):
        load(copy, tmp_path / "run")


def test_weights_of_other_senses_are_left_out_and_named(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(copy / "model.safetensors") | {"visual.patch_embed.weight": torch.zeros(2)}
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    load(copy, tmp_path / "run")
    assert "visual.patch_embed.weight" in capsys.readouterr().err


def test_a_tokenizer_larger_than_the_embedding_is_refused_or_makes_it_larger(copy: Path, tmp_path: Path) -> None:
    own = load(copy, tmp_path / "own").model.get_input_embeddings().weight.detach()
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.add_tokens([f"<|new {number}|>" for number in range(len(own) + 6 - tokenizer.get_vocab_size())])
    tokenizer.save(str(copy / "tokenizer.json"))
    with pytest.raises(GymError, match=f"makes {len(own) + 6:,} tokens") as caught:
        load(copy, tmp_path / "a")
    assert caught.value.problems[0].key == "model.resize_vocab"
    first, again = (load(copy, tmp_path / name, resize_vocab=True).model for name in "bc")
    found = first.get_input_embeddings().weight.detach()
    assert len(found) >= len(own) + 6 and len(found) % 64 == 0 and first.config.vocab_size == len(found)
    assert torch.equal(found[: len(own)], own) and torch.equal(found, again.get_input_embeddings().weight)
    frozen = load_frozen(Transformers(path=str(copy), resize_vocab=True), "fp32", PADDED).model
    assert torch.equal(found, frozen.get_input_embeddings().weight), "a reference has the same ones"


def test_rows_that_no_token_had_become_the_mean_where_one_is_added(copy: Path, tmp_path: Path) -> None:
    """Many models have more rows than tokens; what the further ones hold never trained."""
    model = load(copy, tmp_path / "own").model
    own = model.get_input_embeddings().weight.detach().clone()
    tokens = Tokenizer.from_file(str(copy / "tokenizer.json")).get_vocab_size()
    model.resize_token_embeddings(tokens + 8)
    model.get_input_embeddings().weight.data[tokens:] = 1e4
    model.save_pretrained(copy)
    grown = load(copy, tmp_path / "grown", add_tokens=["<one>", "<two>"], add_special_tokens=["<s1>"])
    found = grown.model.get_input_embeddings().weight.detach()
    assert grown.grown and grown.path != copy == grown.own_folder and len(found) == tokens + 8
    assert torch.equal(found[:tokens], own[:tokens]) and bool((found[tokens + 3 :] == 1e4).all())
    known = json.loads((copy / "tokenizer.json").read_text())["added_tokens"][0]["content"]
    assert not load(copy, tmp_path / "none", add_special_tokens=[known]).grown


def test_code_that_comes_with_a_model_needs_consent(copy: Path, tmp_path: Path) -> None:
    edit(copy, auto_map={"AutoModelForCausalLM": "modeling.Evil"})
    (copy / "modeling.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(GymError, match="trust_remote_code"):
        load(copy, tmp_path / "run")


def test_an_adapter_is_no_model(copy: Path, tmp_path: Path) -> None:
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(GymError, match="adapter"):
        load(copy, tmp_path / "run")


def test_random_weights_follow_the_seed_and_need_no_file(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    state = torch.random.get_rng_state()
    first, again = (load(copy, tmp_path / name, init="random").model.state_dict() for name in "ab")
    assert same(first, again)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dtype_follows_precision(copy: Path, tmp_path: Path) -> None:
    tensors = {name: weight.bfloat16() for name, weight in load_file(copy / "model.safetensors").items()}
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    edit(copy, dtype="bfloat16")
    assert load(copy, tmp_path / "a").model.dtype == torch.float32
    assert load(copy, tmp_path / "b", precision="bf16").model.dtype == torch.bfloat16
    assert load(copy, tmp_path / "c", precision="auto", dtype="bf16").precision == "bf16"
    with pytest.raises(GymError, match="bf16"):
        load(copy, tmp_path / "d", dtype="bf16")


@pytest.mark.parametrize(("held", "embedded"), [(torch.float16, torch.float16), (torch.bfloat16, torch.float32)])
def test_norms_take_what_is_in_another_precision(tmp_path: Path, held: torch.dtype, embedded: torch.dtype) -> None:
    """A model in fp16 whose products are in bf16, and one in bf16 whose embeddings train."""
    whole = families.build("gpt_neox")
    whole.to(held).save_pretrained(tmp_path / "model")
    model = load(tmp_path / "model", tmp_path / "run", precision="bf16").model.eval()
    model.get_input_embeddings().to(embedded)
    tokens = torch.tensor([[5, 9, 30, 7, 11]])
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=tokens, use_cache=False).logits.float()
        wanted = whole.float()(input_ids=tokens, use_cache=False).logits
    assert float((found - wanted).norm() / wanted.norm()) < 2e-2


def test_auto_precision_is_tried_once_and_kept_by_the_run(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    found = load(copy, tmp_path / "run", precision="auto").precision
    assert found in ("fp32", "bf16")
    assert "ms in fp32" in capsys.readouterr().err
    (file,) = (tmp_path / "cache" / "probe").glob("*.json")
    trial = json.loads(file.read_text())
    assert trial["error"] < 0.02
    other = {"fp32": "bf16", "bf16": "fp32"}[found]
    swapped = {"fp32_ms": 1.0, "bf16_ms": 9.0} if other == "fp32" else {"fp32_ms": 9.0, "bf16_ms": 1.0}
    file.write_text(json.dumps(trial | swapped))
    assert load(copy, tmp_path / "run", precision="auto").precision == found  # the run goes on as it began
    assert load(copy, tmp_path / "new", precision="auto").precision == other


def test_consent_to_the_code_of_one_model_is_none_for_another() -> None:
    own = Transformers(
        path="first", revision="v1", init="random", attention="sdpa", rope_scaling="yarn", trust_remote_code=True
    )
    assert own.other("second") == Transformers(path="second", attention="sdpa")
    assert own.other("first") == own.model_copy(update={"init": "pretrained"})


def test_a_revision_of_what_has_none_is_refused(model_path: Path) -> None:
    for path in ("tiny", str(model_path)):
        with pytest.raises(RecipeError, match="no repository on the Hub") as caught:
            Transformers(path=path, revision="v1").check()
        assert caught.value.problems[0].key == "model.revision"
        Transformers(path=path, revision="main").check()
    Transformers(path="somebody/model", revision="v1").check()
