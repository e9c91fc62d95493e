"""The tokenizer of a model as a GGUF file has it: byte-level BPE, whose way of cutting texts up llama.cpp knows by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers.models import BPE

from gym_core import GymError
from gym_data.tokenizer_files import tokens_around
from gym_export.formats.gguf.architectures import refused

NO_VOCABULARY = "no_vocab"  #: what a file says of a model without a tokenizer
ENDS = ("eos", "eot", "eom")  #: roles of tokens that end an answer
#: Names under which llama.cpp takes a word that is a token as it is, without merging.
IGNORING = frozenset({"llama-bpe"})
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  #: types of tokens, as GGUF numbers them

_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)")  #: two ways to write the same
#: What llama.cpp calls the patterns that cut texts up; two patterns of one name match the same.
PATTERNS = {
    "": "gpt-2",  # the library's own, `use_regex`
    **{f"{words}|{_WORDS}|\\p{{N}}|{_TAIL}": "qwen2" for words in _CONTRACTIONS},
    **{f"{words}|{_WORDS}|\\p{{N}}{{1,3}}|{_TAIL}": "llama-bpe" for words in _CONTRACTIONS},
}


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    ids: dict[str, int] = field(default_factory=dict)  #: of special tokens, by role
    begins: bool = False  #: whether a text begins with the token for that
    templates: dict[str, str] = field(default_factory=dict)
    """Chat templates by name: `default` is the usual one, others are for tools and such."""
    ends: bool = False  #: whether a text ends with that for the end, as an embedding model may have it


def vocabulary_of(tokenizer: Any, folder: Path, size: int, where: str, stops: Sequence[int] = ()) -> Vocabulary | None:
    """Return what a file says of the tokenizer in a folder, for a model with embeddings for `size` tokens; None without one.

    `stops` are the tokens that end an answer.

    Raises GymError where llama.cpp would make other tokens of a text, or does not know how to.
    """
    if tokenizer is None:
        return None
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise refused("a tokenizer without `tokenizer.json`", where, "convert it with transformers first")
    told = json.loads(file.read_text(encoding="utf-8"))
    model = told["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = "SentencePiece" if model.get("byte_fallback") else model.get("type")
        raise refused(f"a tokenizer of type {kind}", where, "export with `safetensors`; GGUF takes byte-level BPE")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise refused(f"byte-level BPE with `{option}`", where, "export with `safetensors`")
    written = {number: text for text, number in model["vocab"].items()}
    types = dict.fromkeys(written, NORMAL)
    for token in told.get("added_tokens") or ():
        written[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
        for option in ("lstrip", "rstrip", "single_word"):  # llama.cpp takes such a token for any other
            if token.get(option):
                raise refused(f"the token {token['content']!r} with `{option}`", where, "export with `safetensors`")
    if written and max(written) >= size:
        raise GymError(
            f"the tokenizer has token {max(written)}, and the model embeddings for {size}",
            where=where,
            fix="train with `resize_vocab: true`, or put back the tokenizer of the model",
        )
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    if any(pair.count(" ") != 1 for pair in merges):
        raise refused("merges of tokens with spaces", where, "export with `safetensors`")
    given = tokenizer.chat_template or {}
    begins = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    pre = _pre(told, merges, where)
    _check_merges(model, pre, {text for number, text in written.items() if types[number] == NORMAL}, where)
    return Vocabulary(
        pre,
        [written.get(number, f"[PAD{number}]") for number in range(size)],
        [types.get(number, UNUSED) for number in range(size)],
        merges,
        {role: number for role in ("bos", "pad") if (number := getattr(tokenizer, f"{role}_token_id")) is not None}
        | _ends(stops, where),
        begins,
        {"default": given} if isinstance(given, str) else dict(sorted(given.items())),
    )


def closed(words: Vocabulary | None, folder: Path, where: str) -> Vocabulary | None:
    """Return what a file says of the tokenizer of an embedding model, which is given what it puts behind a text.

    Raises GymError where that is more than a token.
    """
    behind = tokens_around(folder)[1] if words is not None else []
    if words is None or not behind:
        return words
    if len(behind) > 1:
        raise refused(f"a tokenizer that puts {len(behind)} tokens behind a text", where, "export with `safetensors`")
    return replace(words, ids=words.ids | {"eos": behind[0]}, ends=True)


def _ends(stops: Sequence[int], where: str) -> dict[str, int]:
    """Return the tokens that end an answer by the roles that a file has for them."""
    if len(stops) > len(ENDS):
        what = f"{len(stops)} tokens that end an answer, of which a file names {len(ENDS)}"
        raise refused(what, where, "leave some out of `eos_token_id` in generation_config.json")
    return dict(zip(ENDS, stops, strict=False))


def _check_merges(model: Mapping[str, Any], pre: str, texts: set[str], where: str) -> None:
    """Raise GymError where a word that is a token becomes that token in one library, and what merges make in the other."""
    ignored = bool(model.get("ignore_merges"))
    if ignored == (pre in IGNORING):
        return
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    merging = BPE(vocab=model["vocab"], merges=merges)
    lost = next((text for text in sorted(texts) if [token.value for token in merging.tokenize(text)] != [text]), None)
    if lost is not None:
        what = f"`ignore_merges: {str(ignored).lower()}` with the pre-tokenizer {pre} and a token, {lost!r}, that no merges make"
        raise refused(what, where, "export with `safetensors`")


def _pre(told: dict[str, Any], merges: list[str], where: str) -> str:
    """Return what llama.cpp calls the way in which texts are cut up before they are merged."""
    normalizer = told.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        raise refused(f"a tokenizer with the normalizer {_short(normalizer)}", where, "export with `safetensors`")
    steps = told.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    last = steps[-1] if steps else {}
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space"):
        if len(steps) == 1 and (last.get("use_regex", True) or not merges):
            return "gpt-2"  # without merges each byte is a token, wherever texts are cut
        split = steps[0]
        if (
            len(steps) == 2
            and split.get("type") == "Split"
            and not split.get("invert")
            and not last.get("use_regex", True)
        ):
            pattern = split.get("pattern", {}).get("Regex", "")
            if split.get("behavior") == "Isolated" and pattern in PATTERNS:
                return PATTERNS[pattern]
    known = ", ".join(sorted({*PATTERNS.values()}))
    raise refused(f"a tokenizer that cuts texts up by {_short(steps)}", where, f"known are those of {known}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 160 else text[:157] + "..."


def describe(writer: Any, vocabulary: Vocabulary | None) -> None:
    """Write the tokenizer into a file, or that there is none: llama.cpp loads no file that says neither."""
    if vocabulary is None:
        writer.add_tokenizer_model(NO_VOCABULARY)
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges or NO_MERGES)
    for role, number in vocabulary.ids.items():
        writer.add_uint32(f"tokenizer.ggml.{_ROLES.get(role, role)}_token_id", number)
    writer.add_add_bos_token(vocabulary.begins)
    writer.add_add_eos_token(vocabulary.ends)
    for name, template in vocabulary.templates.items():
        writer.add_string(template_key(name), template)
    if further := sorted(vocabulary.templates.keys() - {"default"}):
        writer.add_array("tokenizer.chat_templates", further)


def template_key(name: str) -> str:
    """Return the key of a chat template with a name."""
    return "tokenizer.chat_template" + (f".{name}" if name != "default" else "")


#: The file must name merges, and an empty list has no place in it: a pair that no text has.
NO_MERGES = ["\u0120\u0120\u0120\u0120\u0120 \u0120\u0120\u0120\u0120\u0120"]
_ROLES = {"pad": "padding"}
