"""Formats beside safetensors: what they write is what was trained, and what they cannot write is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import AutoTokenizer

import gym_tiny
from gym_core import Artifact, GymError
from gym_core.cli import run
from gym_core.errors import OK
from gym_core.record import RunRecord
from gym_data import templates
from gym_data.chat import render
from gym_export import GGUF, Ollama
from gym_export.certified import Certified
from gym_export.formats.gguf.numbers import decoded, encoded, farthest, type_for
from gym_export.formats.gguf.vocabulary import PATTERNS
from gym_export.formats.ollama import measured, read_back, template_of
from gym_export.source import QUESTION, TALK, Source

TINY = Path(gym_tiny.__file__).parent / "model"
WIDE = {"q8_0": 0.01, "q4_0": 0.1}


@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_0"])
def test_a_gguf_file_holds_weights_tokens_and_template(tmp_path: Path, kind: Any) -> None:
    written = GGUF(type=kind, runtime="gguf").build().export(Artifact(TINY), tmp_path / "out")
    reader = GGUFReader(written / "model.gguf")
    weights = load_file(TINY / "model.safetensors")
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert len(found) == len(weights)
    for theirs, ours in {
        "token_embd": "embed_tokens",
        "blk.2.attn_k": "layers.2.self_attn.k_proj",
        "blk.1.ffn_down": "layers.1.mlp.down_proj",
        "blk.0.attn_q_norm": "layers.0.self_attn.q_norm",
    }.items():
        tensor, wanted = found[f"{theirs}.weight"], weights[f"model.{ours}.weight"].float().numpy()
        read = dequantize(tensor.data, tensor.tensor_type).reshape(wanted.shape)
        assert np.linalg.norm(read - wanted) <= WIDE.get(kind, 0.0) * np.linalg.norm(wanted)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    assert [tokens[number] for number in (0, 1000, 2041)] == tokenizer.convert_ids_to_tokens([0, 1000, 2041])
    assert len(tokens) == 2048 and reader.get_field("tokenizer.ggml.pre").contents() == "qwen2"
    assert reader.get_field("tokenizer.chat_template").contents() == tokenizer.chat_template
    assert reader.get_field("tokenizer.ggml.eos_token_id").contents() == tokenizer.eos_token_id


def test_a_number_that_is_off_by_more_than_its_type_rounds_is_noticed() -> None:
    wanted = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    for kind, off in (
        ("Q8_0", 1 / 100),
        ("Q4_0", 1 / 6),
        ("Q4_1", 1 / 12),
        ("BF16", 2**-7),
        ("F16", 2**-9),
        ("F32", 1e-4),
    ):
        changed = wanted.copy()
        changed[1, 31] += off
        assert farthest(wanted, changed, kind) > 1 >= farthest(wanted, wanted.copy(), kind)


@pytest.mark.parametrize("kind", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "f16", "bf16"])
def test_rows_that_are_nearly_zero_may_be_off_by_what_scales_in_half_precision_lose(kind: str) -> None:
    """Such as embeddings of tokens that no text had."""
    draw = np.random.default_rng(0)
    for size in 10.0 ** np.arange(-9, -2, 0.25):
        weight = (draw.normal(size=(40, 64)) * np.repeat([size, 0.02], 20)[:, None]).astype(np.float32)
        stored = type_for(weight.shape, kind, keeps=False)
        found = decoded(encoded("weight", weight, stored, "here"), stored)
        assert farthest(weight, found, stored.name) <= 1


@pytest.fixture
def copy(model_path: Path, tmp_path: Path) -> Path:
    """A copy of the tiny random model, to be changed."""
    shutil.copytree(model_path, tmp_path / "model")
    return tmp_path / "model"


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


def changed(path: Path, **more: Any) -> None:
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, **more}))


@pytest.mark.parametrize(
    ("file", "more", "why"),
    [
        ("config.json", {"model_type": "gemma2"}, "models of the family `gemma2`"),
        ("config.json", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ("config.json", {"attention_bias": True}, "attention_bias"),
        ("config.json", {"rope_parameters": YARN | {"beta_fast": 16.0}}, "`beta_fast` of a rotary scaling"),
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "cuts texts up by"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused_before_anything_is_written(
    copy: Path, tmp_path: Path, file: str, more: dict[str, Any], why: str
) -> None:
    changed(copy / file, **more)
    with pytest.raises(GymError, match=why):
        source = _source(copy) if file == "tokenizer.json" else None
        if source is None:
            from transformers import AutoConfig

            from gym_export.formats.gguf.architectures import architecture_of

            architecture_of(AutoConfig.from_pretrained(copy).get_text_config(), str(copy))
        else:
            with source:
                Certified(GGUF()).format.check(source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["lstrip", "rstrip", "single_word", "end_of_word_suffix", "merges"])
def test_tokens_that_llama_cpp_would_cut_otherwise_are_refused(copy: Path, option: str) -> None:
    """A word that is a token which no merges make: `llama-bpe` takes it for that token, and this tokenizer does not."""
    file = copy / "tokenizer.json"
    told = json.loads(file.read_text())
    if option == "merges":
        told["model"]["vocab"]["unmade"] = max(told["model"]["vocab"].values()) + 1
        told["added_tokens"] = []
        pattern = next(text for text, name in PATTERNS.items() if name == "llama-bpe")
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        told["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    elif option == "end_of_word_suffix":
        told["model"][option] = "</w>"
    else:
        told["added_tokens"][0][option] = True
    file.write_text(json.dumps(told))
    with Source(Artifact(copy)) as source, pytest.raises(GymError, match=f"{option}|that no merges make"):
        GGUF().build().format.check(source)


def test_every_token_that_ends_an_answer_is_named_in_the_file(copy: Path, tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(copy).eos_token_id
    changed(copy / "generation_config.json", eos_token_id=[7, own, 9])
    written = Ollama(type="f32", runtime="gguf").build().export(Artifact(copy), tmp_path / "out")
    reader = GGUFReader(written / "model.gguf")
    found = [reader.get_field(f"tokenizer.ggml.{role}_token_id").contents() for role in ("eos", "eot", "eom")]
    assert found == [own, 7, 9]
    assert (written / "Modelfile").read_text().count("PARAMETER stop") == 3
    changed(copy / "generation_config.json", eos_token_id=[7, own, 9, 11])
    with Source(Artifact(copy)) as source, pytest.raises(GymError, match="4 tokens that end an answer"):
        GGUF().build().format.check(source)


def _source(path: Path) -> Any:
    from gym_export.source import Source

    return Source(Artifact(path))


def test_numbers_that_overflow_are_refused_and_nothing_is_left(copy: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = load_file(copy / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(GymError, match=r"blk.1.ffn_up|layers\.1\.mlp\.up_proj\.weight has numbers up to 1e\+05"):
        GGUF(type="f16", runtime="gguf").build().export(Artifact(copy), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_modelfile_says_what_the_chat_template_does(tmp_path: Path) -> None:
    written = Ollama(type="q8_0", runtime="gguf", num_ctx=512).build().export(Artifact(TINY), tmp_path / "out")
    text = (written / "Modelfile").read_text()
    assert text.startswith("FROM ./model.gguf\n") and "PARAMETER num_ctx 512" in text
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    wanted = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert read_back(text, "Modelfile").rendered(messages) == wanted


@pytest.mark.parametrize("family", ["llama3", "qwen", "gemma", "mistral", "chatml"])
def test_templates_of_families_are_said_in_ollamas_language(model_path: Path, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    tokenizer.chat_template = (Path(templates.__file__).parent / f"{family}.jinja").read_text()
    if family == "mistral":  # its opening `<s>[INST]` and `</s>[INST]` end alike
        tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    turns = measured(tokenizer, "here")
    assert read_back(f'TEMPLATE """{template_of(turns)}"""', "here") == turns
    for messages in (QUESTION, TALK):
        wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert turns.rendered(messages) == wanted
    assert turns.joined == (family in ("gemma", "mistral"))
    if family == "mistral":
        assert turns.around["assistant"][1].strip() == "</s>"


def test_a_template_that_strips_messages_becomes_a_modelfile_that_says_so(copy: Path, tmp_path: Path) -> None:
    template = copy / "chat_template.jinja"
    loop = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</>{% endfor %}"
    template.write_text(loop + "{% if add_generation_prompt %}<assistant>{% endif %}")
    written = Ollama(type="f32", runtime="gguf").build().export(Artifact(copy), tmp_path / "out")
    told = json.loads((written / "certificate.json").read_text())
    assert told["modelfile_prompts"] == 2 and told["not_stripped_in_ollama"] == "space around messages"


def test_a_template_that_writes_between_messages_is_no_modelfile(copy: Path, tmp_path: Path) -> None:
    (copy / "chat_template.jinja").write_text(
        "{{ messages | length }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(GymError, match="cannot be said in Ollama's language"):
        Ollama(runtime="gguf").build().export(Artifact(copy), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("write", ["render a question", "cannot be said in Ollama's language"])
def test_a_template_without_an_end_is_refused_before_anything_else_reads_it(
    copy: Path, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers and llama.cpp's binding give templates all the time there is."""
    monkeypatch.setattr(render, "SECONDS", 0.2)
    loop = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    (copy / "chat_template.jinja").write_text(loop)
    with Source(Artifact(copy)) as source, pytest.raises(GymError, match=f"{write}.* within 0.2 s"):
        measured(source.tokenizer, "here") if "Ollama" in write else source.prompts


@pytest.fixture
def finished(model_path: Path, tmp_path: Path) -> Path:
    """The output of a finished run."""
    output = tmp_path / "run"
    shutil.copytree(model_path, output / "model")
    recipe = {"model": str(model_path), "data": {"sources": [{"name": "tiny-tasks"}]}, "algorithm": "sft"}
    artifact = Artifact(output / "model").to_json()
    RunRecord(output / "run.json").update(status="finished", recipe=recipe, trained=artifact, artifact=artifact)
    return output


def test_the_command_verifies_and_names_what_changed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(finished), "--to", "gguf", "type=q8_0", "runtime=gguf"]) == OK
    assert run(["export", str(finished), "--verify"]) == OK
    assert "gguf: verified" in capsys.readouterr().out
    template = finished / "model" / "chat_template.jinja"
    held = template.read_text()
    template.write_text(held.replace("user", "human") + " ")
    assert run(["export", str(finished), "--verify"]) != OK
    assert "artifact is another one" in capsys.readouterr().err
    template.write_text(held)
    file = finished / "export/gguf/model.gguf"
    with file.open("r+b") as data:
        data.truncate(file.stat().st_size - 1)
    assert run(["export", str(finished), "--verify"]) != OK
    assert "model.gguf is not what was certified" in capsys.readouterr().err


def test_what_takes_more_room_than_there_is_is_refused_before_the_first_byte(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = Certified(GGUF(runtime="gguf"))
    monkeypatch.setattr(exporter.format, "size", lambda source: 2**60)
    with pytest.raises(GymError, match="MiB are free"):
        exporter.export(Artifact(model_path), tmp_path / "here" / "out")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("kind", ["link", "file", "inside"])
def test_targets_that_cannot_be_taken(copy: Path, tmp_path: Path, kind: str) -> None:
    target = copy / "deep" / "out" if kind == "inside" else tmp_path / "target"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    if kind == "file":
        target.write_text("mine")
    with pytest.raises(
        GymError, match={"link": "symbolic link", "file": "is a file", "inside": "lies in the model"}[kind]
    ):
        GGUF(runtime="gguf").build().export(Artifact(copy), target)
    assert kind != "file" or target.read_text() == "mine"
