"""Records what ids and masks LLaMA-Factory makes: `python record_ids.py CHECKOUT VERSION`, by all its templates."""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace

from llamafactory_checkout import processors
from llamafactory_conversations import CONVERSATIONS, named, tokenizer_in
from transformers import AutoTokenizer

RECORDED = Path(__file__).parent / "recorded.json"


def main() -> None:
    """Write the record."""
    checkout, version = Path(sys.argv[1]), sys.argv[2]
    template, supervised, *_ = processors(checkout)
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tokenizer_in(Path(folder) / "model")
        for name in sorted(template.TEMPLATES):
            found[name] = {}
            for title, (messages, system, tools, cutoff, train_on) in CONVERSATIONS.items():
                tokenizer = AutoTokenizer.from_pretrained(model)
                options = SimpleNamespace(
                    template=name, tool_format=None, default_system=None, enable_thinking=True, preserve_thinking=False,
                    train_on_prompt=False, mask_history=train_on == "last", cutoff_len=cutoff,
                )  # fmt: skip
                form = template.get_template_and_fix_tokenizer(tokenizer, options)
                form.mm_plugin = template.get_mm_plugin("base")
                processor = supervised.SupervisedDatasetProcessor(form, tokenizer, None, options)
                try:
                    ids, labels = processor._encode_data_example(
                        messages[:-1], messages[-1:], system, json.dumps(tools) if tools else "", [], [], []
                    )
                except Exception as error:
                    found[name][title] = type(error).__name__
                else:
                    # Where a token closes turns once, at the end, earlier turns learn it in place of the token that follows.
                    trained = [label == token for label, token in zip(labels, ids, strict=True)]
                    found[name][title] = named(ids, [False, *trained[1:]])
    RECORDED.write_text(
        json.dumps({"version": version, "day": date.today().isoformat(), "found": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
