"""Train gym-tiny's tokenizer on its own corpus and write it beside the packaged model.

Run as `python recipes/tiny/tokenizer.py [FOLDER]`. The result depends on the corpus and the version of
`tokenizers` alone. A new tokenizer needs a new base: run `base.yaml` after it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from gym_tiny.corpus import documents, transcripts
from gym_tiny.corpus.prose import prose
from gym_tiny.family import MODEL

VOCABULARY = 2048
DOCUMENTS, TRANSCRIPTS, PAGES = 6_000, 6_000, 2_000
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # dropped when a completion is decoded
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")  # kept
# Words with the blank before them, single digits, runs of signs, blanks.
PIECES = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts() -> Iterator[str]:
    """Every piece of text that the model meets, without control tokens, which are never learnt."""
    markup = re.compile("|".join(map(re.escape, MARKUP)))
    for text in documents(DOCUMENTS):
        yield markup.sub("", text)
    yield from (prose(Random(f"page/{index}")) for index in range(PAGES))
    for row in transcripts(TRANSCRIPTS):
        yield from (json.dumps(tool) for tool in row.get("tools", ()))
        for message in row["messages"]:
            yield f"{message['role']}\n{message['content']}"
            for call in message.get("tool_calls", ()):
                yield (
                    '\n{"name": "'
                    + call["function"]["name"]
                    + '", "arguments": '
                    + call["function"]["arguments"]
                    + "}\n"
                )


def train() -> Tokenizer:
    """A byte-level BPE tokenizer: any UTF-8 text survives it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    return tokenizer


def main(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer = train()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} tokens in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL)
