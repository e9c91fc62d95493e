"""Tokenizers whose class in transformers builds them anew: ours are the same, token for token."""

import json

import numpy as np
import pytest
from data_cases import MARKED, chat
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from gym_core import DataError
from gym_data import tokenizer as ours

transformers = pytest.importorskip("transformers")
LETTERS = "abcdefghijklmnopqrstuvwxyz.,!?[]/INST"
MERGES = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n"), ("▁", "▁"), ("▁", "a"), ("i", "n")]


def write(path, **config):
    """A tokenizer as Llama 2 has it: blanks are made in the normalizer of its file."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    pieces += ["".join(pair) for pair in MERGES]
    fast = Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            MERGES,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    fast.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    fast.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    (path / "tokenizer_config.json").write_text(json.dumps(names | config))
    (path / "chat_template.jinja").write_text(LLAMA)


LLAMA = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + m.content + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)


def texts(number):
    random = np.random.default_rng(0)
    parts = ["the", "an", " ", "  ", "in", "a", "\n", "é", "[INST]", ".", " the", "x y", "</s>", "<s>"]
    return ["".join(random.choice(parts, random.integers(1, 12))) for _ in range(number)]


@pytest.mark.parametrize("model_type", ["llama", "mistral", None])
@pytest.mark.parametrize(
    "config",
    [{}, {"legacy": False}, {"legacy": True}, {"add_prefix_space": False}, {"legacy": False, "add_prefix_space": True}],
)
def test_llama_tokenizers_give_the_tokens_of_their_class(config, model_type, tmp_path):
    write(tmp_path, **config)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type} if model_type else {}))
    tokenizer, theirs = (
        ours.Tokenizer(tmp_path, split_special_tokens=False),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
    )
    for text in texts(100):
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
    messages = chat("the an", "in the", "an a", " the")
    expected = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, trained = ours.Tokenizer(tmp_path).chat(messages)
    assert ids.tolist() == expected["input_ids"]
    assert trained.astype(int).tolist() == expected["assistant_masks"]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert tokenizer.document_start == [tokenizer.bos_id]


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2TokenizerFast", None])
def test_other_classes_too(name, model, with_template):
    path = with_template(MARKED)
    config = json.loads((path / "tokenizer_config.json").read_text()) | {
        "tokenizer_class": name,
        "add_prefix_space": True,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    tokenizer, theirs = (
        ours.Tokenizer(path, split_special_tokens=False),
        transformers.AutoTokenizer.from_pretrained(path),
    )
    for text in texts(50):
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_a_class_that_cannot_be_built_is_an_error_of_four_lines(tmp_path):
    write(tmp_path, tokenizer_class="T5Tokenizer", extra_ids="many")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="transformers cannot build this tokenizer") as caught:
        ours.Tokenizer(tmp_path)
    assert str(caught.value).count("\n") <= 3
