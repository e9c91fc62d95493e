"""Rows as axolotl writes them for the model, and a run that learns them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gym_axolotl.datasets.instructions import STYLES, instruct, written_out
from gym_axolotl.instruct import Instruct
from gym_axolotl.instruct_reader import written
from gym_core import execute, load_recipe
from gym_data import DatasetConfig, File
from gym_data.tokenizer import Tokenizer
from gym_testkit.bench import Bench, fingerprint

ROW = {"instruction": "Add {1} and 2.", "input": "", "output": "3"}
LONG = {"instruction": "Add.", "input": "1 {input}", "output": "{answer}", "question": "Why?", "system": "Sum up."}


def texts(format_: dict[str, Any], row: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the texts of a row, and which of them are learnt."""
    options = {key: value for key, value in format_.items() if key != "name"}
    return list(Instruct(**options).build().convert(row).parts)


def test_an_instruction_is_written_as_its_type_says() -> None:
    prompt, answer = texts(instruct("alpaca", None) or {}, ROW)
    assert prompt[0].startswith("Below is an instruction that describes a task. Write")
    assert prompt[0].endswith("request.\n\n### Instruction:\nAdd {1} and 2.\n\n### Response:\n") and not prompt[1]
    assert answer == ("3", True)
    prompt, answer = texts(instruct("alpaca:chat", None) or {}, LONG)
    assert prompt[0].startswith("SYSTEM: Below is an instruction that describes a task, paired with")
    assert prompt[0].endswith("\nUSER: Add.\n1 {input}\nASSISTANT:") and answer == ("{answer}", True)
    row = {"question": "Q", "category": "C", "answer": "A"}
    assert texts(instruct("jeopardy", None) or {}, row)[1] == ("what is A", True)
    assert "### Input:\nC\n" in texts(instruct("jeopardy", None) or {}, row)[0][0]
    assert all(instruct(f"alpaca:{style}", None) for style in STYLES)
    assert instruct("nobody", None) is None


def test_a_format_that_is_written_out() -> None:
    told = written_out({"field_instruction": "question", "format": "[INST] {instruction} {{{input}}} [/INST]"}, "<end>")
    parts = texts(told, LONG)
    assert parts == [("Sum up.[INST] Why? {1 {input}} [/INST]", False), ("{answer}", True), ("<end>", True)]
    assert texts(written_out({"system_prompt": "S", "system_format": "<{system}>"}, None), ROW) == [
        ("<S>Add {1} and 2. ", False),
        ("3", True),
    ]
    assert written("{a} {b}", a="{b}") == "{b} {b}"


def test_prompt_and_answer_are_encoded_one_after_the_other_between_the_tokens_of_a_text(
    bench: Bench, tmp_path: Path
) -> None:
    """An oracle of axolotl's tokens: those of the prompt, those of the answer, the end; the answer and the end are learnt."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, [ROW, {**ROW, "output": ""}, LONG])))
    model = bench.model()
    config = DatasetConfig(
        sources=[File(path=str(file), read_as=Instruct())], bad_rows="skip", split_special_tokens=False
    )
    built = config.build(tokenizer=model, rows="conversation", seed=0)
    tokenizer = Tokenizer(model, split_special_tokens=False)
    assert len(built.train) == 2, "an empty answer is left out"
    for example, row in zip(built.train, (ROW, LONG), strict=True):
        prompt, answer = (tokenizer.encode(text) for text, _ in texts({}, row))
        assert example.tokens.tolist() == [*tokenizer.document_start, *prompt, *answer, tokenizer.eos_id]
        learnt = len(tokenizer.document_start) + len(prompt)
        assert example.trained.tolist() == [False] * learnt + [True] * (len(answer) + 1)


KEYS = """
base_model: {model}
datasets:
  - {{path: {rows}, type: alpaca}}
adapter: lora
lora_r: 4
lora_alpha: 8
lora_target_linear: true
sequence_len: 256
sample_packing: {packing}
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
max_steps: 3
learning_rate: 1e-3
bf16: false
output_dir: {output}
logging_steps: 1
warmup_steps: 2
"""


@pytest.mark.parametrize("packing", [True, False])
def test_a_file_trains_as_the_recipe_that_it_means(bench: Bench, packing: bool) -> None:
    rows = bench.path("rows.jsonl")
    rows.write_text(
        "\n".join(json.dumps({**ROW, "instruction": f"Add {n} and 2.", "output": str(n + 2)}) for n in range(40))
    )
    file = bench.path("file.yaml")
    written = {"model": bench.model(), "rows": rows, "output": bench.path("theirs"), "packing": str(packing).lower()}
    file.write_text(KEYS.format(**written))
    theirs = execute(load_recipe(file)).output
    batch = {"batch_tokens": 512} if packing else {"batch_size": 2}
    ours = {
        "model": str(bench.model()),
        "data": {
            "sources": [{"name": "file", "path": str(rows), "read_as": "axolotl_instruct"}],
            "template": "alpaca", "split_special_tokens": False, "cutoff": 256, "overlong": "drop", "bad_rows": "skip",
            "whole_epochs": not packing,
        },
        "algorithm": "sft",
        "adapter": {"name": "lora", "rank": 4, "alpha": 8},
        "scheduler": "cosine",
        "train": {"max_steps": 3, "epochs": 1, "accumulate": 2, "learning_rate": 1e-3, "precision": "fp32", "seed": 42,
                  "warmup": 2, "log_every": 1, **batch},
        "output": str(bench.path("ours")),
    }  # fmt: skip
    assert fingerprint(
        execute(load_recipe(yaml.safe_load(yaml.safe_dump(ours)))).output / "model", ".safetensors"
    ) == fingerprint(theirs / "model", ".safetensors")
