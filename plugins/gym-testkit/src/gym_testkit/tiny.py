"""Writes a tiny random Qwen3 model with a byte-level tokenizer from nothing but the standard library.

Every byte is a token, so that no text is out of vocabulary and lengths can be counted by eye. It knows nothing; laws
ask whether training changes it as promised, not whether it is any good.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gym_testkit import weights

HIDDEN, MIDDLE, LAYERS, HEADS, GROUPS, HEAD = 32, 64, 2, 4, 2, 8
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + 8  #: bytes, special tokens and a few unused rows

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_model(
    into: Path, seed: int = 0, extra: Sequence[str] = (), hidden: int = HIDDEN, middle: int = MIDDLE
) -> Path:
    """Write the model with the weights of this seed to a new directory and return it.

    `extra` are up to five more special tokens; `bos_token` among them gives the first one that role. `hidden` and `middle` are
    the sizes of its states and of its feed-forward layers.
    """
    into.mkdir(parents=True)
    more = [text for text in extra if text not in (*SPECIAL, "bos_token", "eos_token")]
    special = {text: 256 + position for position, text in enumerate([*SPECIAL, *more])}
    assert 256 + len(special) <= VOCABULARY, f"no room for {len(more)} more special tokens"
    begins = {"bos_token": SPECIAL[0]} if "bos_token" in extra else {}
    ids = {"eos_token_id": special["<|im_end|>"], "pad_token_id": special["<|endoftext|>"]}
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "dtype": "float32",
        **ids,
    }
    _write_json(into / "config.json", config)
    _write_json(into / "generation_config.json", ids)
    _write_json(into / "tokenizer.json", _tokenizer(special))
    _write_json(
        into / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            **begins,
            "model_max_length": 1024,
            "clean_up_tokenization_spaces": False,
        },
    )
    (into / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    weights.write(into / "model.safetensors", random_weights(seed, hidden, middle))
    return into


def random_weights(seed: int, hidden: int = HIDDEN, middle: int = MIDDLE) -> dict[str, weights.Tensor]:
    """Draw all weights: matrices with standard deviation 0.1, norms near 1."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD, hidden),
            f"{prefix}self_attn.k_proj.weight": (GROUPS * HEAD, hidden),
            f"{prefix}self_attn.v_proj.weight": (GROUPS * HEAD, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, HEADS * HEAD),
            f"{prefix}self_attn.q_norm.weight": (HEAD,),
            f"{prefix}self_attn.k_norm.weight": (HEAD,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (middle, hidden),
            f"{prefix}mlp.up_proj.weight": (middle, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, middle),
        }
    return {
        name: weights.normal(shape, 1000 * seed + position, 0.1) if len(shape) == 2 else weights.constant(shape, 1.0)
        for position, (name, shape) in enumerate(sorted(shapes.items()))
    }


def _tokenizer(special: dict[str, int]) -> dict[str, object]:
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, number in special.items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: number for number, character in enumerate(_byte_characters())},
            "merges": [],
        },
    }


def _byte_characters() -> list[str]:
    """Return the printable character that stands for each byte in a byte-level tokenizer (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
