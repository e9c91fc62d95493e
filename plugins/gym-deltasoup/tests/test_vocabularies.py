"""Models whose tokenizers differ: rows go to where their token is, and the result has the tokenizer that was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from soup_models import adapter
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gym_core import GymError
from gym_deltasoup.merge_commands import merge
from gym_deltasoup.recipe import load_merge

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
WORDS = {"cats": "the cat sat on the mat", "sums": "one two three and the sum"}


def written(into: Path, words: str, seed: int, *added: str, rows: int = 0) -> Path:
    """Write a model whose tokenizer was made of these words, with more tokens, and rows behind them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator([WORDS[words]], trainers.BpeTrainer(vocab_size=40, special_tokens=["<s>", "</s>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.add_tokens([AddedToken(each, special=True) for each in added])
    ends = {"bos_token_id": 0, "eos_token_id": tokenizer.convert_tokens_to_ids(added[0]) if added else 1}
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer) + rows, num_key_value_heads=2, **sizes, **ends))
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    return into


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    root = tmp_path_factory.mktemp("family")
    return {
        "base": written(root / "base", "cats", 0),
        "chat": written(root / "chat", "cats", 1, "<|im_end|>", "<tool>", rows=7),
        "tool": written(root / "tool", "cats", 2, "<tool>"),
        "sums": written(root / "sums", "sums", 3, "<tool>"),
    }


def merged(family, into: Path, weights, **said):
    inputs = [{"path": str(family[name]), "weight": weight} for name, weight in weights.items()]
    told = {"merger": "weighted_mean", "inputs": inputs}
    into.mkdir(exist_ok=True)
    (into / "merge.yaml").write_text(json.dumps({**told, "output": str(into / "made"), **said}))
    CliRunner().invoke(merge, [str(into / "merge.yaml")], catch_exceptions=False)
    return into / "made"


def row(path: Path, table: str, token: str):
    """Return the row of a token; None where the model has none."""
    vocabulary = AutoTokenizer.from_pretrained(path).get_vocab()
    return load_file(path / "model.safetensors")[table][vocabulary[token]] if token in vocabulary else None


def lacks(path: Path, tokens: set[str]) -> bool:
    return not tokens <= set(AutoTokenizer.from_pretrained(path).get_vocab())


@pytest.mark.parametrize(
    ("source", "names", "like", "stops"),
    [
        ("union", {"tool": 0.5, "chat": 0.25}, "chat", "tool"),
        ("base", {"chat": 0.25, "tool": 0.5, "sums": 0.25}, "chat", "chat"),
        ("sums", {"chat": 0.25, "tool": 0.5, "sums": 0.25}, "sums", "sums"),
    ],
)
def test_rows_go_to_where_their_token_is(family, tmp_path, source, names, like, stops):
    first = next(iter(names))
    asked = str(family["sums"]) if source == "sums" else source
    made = merged(family, tmp_path, names, tokenizer=asked)
    vocabulary = AutoTokenizer.from_pretrained(made).get_vocab()
    wanted = set(AutoTokenizer.from_pretrained(family[like]).get_vocab())
    assert set(vocabulary) == wanted
    found = load_file(made / "model.safetensors")
    for table in TABLES:
        for token, number in vocabulary.items():
            rows = {name: row(family[name], table, token) for name in names}
            have = [each for each in rows.values() if each is not None]
            other = rows[first] if rows[first] is not None else sum(have) / len(have)
            mixed = sum(w * (other if rows[name] is None else rows[name]) for name, w in names.items())
            torch.testing.assert_close(found[table][number], mixed / sum(names.values()))
    said = json.loads((made / "merge.json").read_text())["taken_from_first"]
    assert {line.split(" lacks ")[0] for line in said} == {
        str(family[name]) for name in names if lacks(family[name], wanted)
    }
    told = AutoModelForCausalLM.from_pretrained(made)
    assert told.config.vocab_size == len(vocabulary) == told.get_input_embeddings().weight.shape[0]
    assert told.config.eos_token_id == json.loads((family[stops] / "config.json").read_text())["eos_token_id"]
    assert json.loads((made / "generation_config.json").read_text())["eos_token_id"] == told.config.eos_token_id


def test_changes_of_a_base_are_those_of_the_same_tokens(family, tmp_path):
    """Of a token that the base lacks, the one model that has it changed nothing."""
    said = {"merger": {"name": "task_arithmetic", "scale": 1}, "base": str(family["base"])}
    made = merged(family, tmp_path, {"chat": 0.5, "tool": 1.0}, tokenizer="union", **said)
    for table in TABLES:
        before, chat, tool = (row(family[name], table, "at") for name in ("base", "chat", "tool"))
        torch.testing.assert_close(row(made, table, "at"), before + 0.5 * (chat - before) + tool - before)
        torch.testing.assert_close(row(made, table, "<|im_end|>"), row(family["chat"], table, "<|im_end|>"))


def test_single_tokens_and_rows_behind_them(family, tmp_path):
    chat, tool = str(family["chat"]), str(family["tool"])
    tokens = {
        "<s>": {"source": {"kind": "zero"}, "force": True},
        "<tool>": {"source": chat},
        "<new>": {"source": {"kind": "model_token", "model": chat, "token": "</s>"}},
        "<more>": {"source": {"kind": "model_token", "model": tool, "token_id": 5}},
    }
    told = {"source": "base", "base": tool, "tokens": tokens, "pad_to_multiple_of": 16}
    made = merged(family, tmp_path, {"chat": 1, "tool": 1}, tokenizer=told)
    tokenizer = AutoTokenizer.from_pretrained(made)
    found = load_file(made / "model.safetensors")
    assert (
        tokenizer.tokenize("<new> at")[0] == "<new>"
        and json.loads((made / "config.json").read_text())["vocab_size"] == 32
    )
    for table in TABLES:
        assert found[table].shape[0] == 32 and not row(made, table, "<s>").any()
        torch.testing.assert_close(row(made, table, "<new>"), row(family["chat"], table, "</s>"))
        torch.testing.assert_close(
            row(made, table, "<more>"), load_file(family["tool"] / "model.safetensors")[table][5]
        )
        torch.testing.assert_close(found[table][31], found[table][: len(tokenizer)].mean(0))


@pytest.mark.parametrize(
    ("inputs", "tokenizer", "match"),
    [
        (["chat", "tool"], None, r"`vocab_size` differs\n.*`tokenizer: base`"),
        (["chat", "sums"], "union", r"sums cuts texts into other words \(\d+, such as .*\n.*source: base"),
        (["chat", "tool"], {"tokens": {"</s>": {"source": "nobody"}}}, "nobody is none of the inputs"),
        (["chat", "tool"], {"tokens": {"<none>": {"source": "tool"}}}, "tool has no token '<none>'"),
        (
            ["chat", "tool"],
            {"tokens": {"a": {"source": {"kind": "model_token", "model": "tool", "token_id": 99}, "force": True}}},
            "there is no row 99",
        ),
        (["chat", "tool"], {"base": "base"}, "base is none of the inputs"),
        (["chat", "tool"], {"tokens": {"a": {"source": {"kind": "model_token"}}}}, "either `token` or `token_id`"),
    ],
)
def test_vocabularies_that_cannot_be_one_are_refused(family, tmp_path, inputs, tokenizer, match):
    said = {"inputs": [{"path": str(family[name]), "name": name} for name in inputs], "tokenizer": tokenizer}
    with pytest.raises(GymError, match=match):
        merged(family, tmp_path, {}, **said)
    assert not (tmp_path / "made").exists()


def test_a_base_has_the_tokens_of_its_models_where_they_have_them(family, tmp_path):
    """Of the same size it would be taken for theirs, and what was subtracted is the row of another token."""
    base = shutil.copytree(family["base"], tmp_path / "other")
    told = json.loads((base / "tokenizer.json").read_text())
    words = told["model"]["vocab"]
    words["at"], words["the"] = words["the"], words["at"]
    (base / "tokenizer.json").write_text(json.dumps(told))
    said = {"merger": "task_arithmetic", "inputs": [str(family["base"])]}
    with pytest.raises(GymError, match=r"the token '\w+' is number .*\n.*`tokenizer: base`"):
        merged(family, tmp_path, {}, base=str(base), **said)
    made = merged(family, tmp_path, {}, base=str(base), tokenizer="base", **said)
    change = row(family["base"], TABLES[0], "at") - row(base, TABLES[0], "at")
    torch.testing.assert_close(row(made, TABLES[0], "at"), row(base, TABLES[0], "at") + 0.4 * change)


def test_what_stands_beside_a_base_has_its_vocabulary(bench, tmp_path):
    paths = [adapter(bench.model(0), tmp_path / str(seed), seed) for seed in (1, 2)]
    with pytest.raises(GymError, match="of kind adapter, and has the vocabulary of its base"):
        merged({}, tmp_path, {}, inputs=[str(each) for each in paths], tokenizer="base")


TEXT = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (TEXT, TEXT),
        ("chatml", "im_start"),
        ("auto", "often"),
        ("nobody", None),
        ("{{ a", None),
        ("{{ a|nobody }}", None),
    ],
)
def test_the_chat_template_is_the_one_that_was_asked_for(bench, tmp_path, asked, wanted):
    models = {}
    for number, text in enumerate(("rare", "often", "often")):
        models[str(number)] = path = bench.model(number + 1)
        (path / "chat_template.jinja").write_text(text)
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates/tools.jinja").write_text("old")
    if wanted is None:
        with pytest.raises(GymError, match=r"chat_template: .*(nobody|end of template)"):
            merged(models, tmp_path, dict.fromkeys(models, 1), chat_template=asked)
        return
    made = merged(models, tmp_path, dict.fromkeys(models, 1), chat_template=asked)
    assert wanted in AutoTokenizer.from_pretrained(made).chat_template
    assert not (made / "additional_chat_templates").exists()


def test_a_file_of_mergekit_says_so_too(tmp_path):
    models = "{merge_method: linear, models: [a, b], base_model: b, parameters: {weight: 1}, chat_template: auto"
    (tmp_path / "theirs.yaml").write_text(f"{models}, tokenizer_source: union}}")
    said = load_merge(tmp_path / "theirs.yaml", ["output=made"])
    assert (said.tokenizer.source, said.tokenizer.base, said.chat_template) == ("union", "b", "auto")
    (tmp_path / "theirs.yaml").write_text(f"{models}, tokenizer: {{source: a, pad_to_multiple_of: 8}}}}")
    said = load_merge(tmp_path / "theirs.yaml", ["output=made"])
    assert (said.tokenizer.source, said.tokenizer.pad_to_multiple_of) == ("a", 8)
