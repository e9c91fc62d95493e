"""A small model, and tasks of lm-eval over files, made once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gym_testkit import tiny

EXAMPLES = "".join(f"Q: How many legs do {count} cats have?\nA: {4 * count}\n\n" for count in range(1, 4))
ROWS = [
    {
        "question": f"{EXAMPLES}Q: What is {number} plus {number}?\nA:",
        "choices": [str(2 * number), str(3 * number + 1), "not a number at all"],
        "answer": number % 3,
        "text": f"Twice {number} is {2 * number}. " * (1 + number % 4),
    }
    for number in range(10)
]
KINDS = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "question",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\\n"], "max_new_tokens": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
}


DRAWS = """
import random

def with_numbers(docs):
    return docs.map(lambda row: {"question": f"{random.random()} {row['question']}"}, load_from_cache_file=False)

def scored(doc, results):
    return {"acc": 1 / doc["answer"]}
"""


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of each kind, one that runs programs, one without data, and one that draws random numbers."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test"}
    written = {name: data | kind for name, kind in KINDS.items()}
    written["pictures"] = written["write"] | {"doc_to_image": "text"}
    written["programs"] = written["write"] | {"unsafe_code": True}
    written["gone"] = written["write"] | {"dataset_kwargs": {"data_files": {"test": str(folder / "gone.jsonl")}}}
    for name, task in written.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **task}))
    (folder / "draws.py").write_text(DRAWS)
    drawing = yaml.safe_dump({"task": "drawn", **data, **KINDS["choose"]})
    (folder / "broken.yaml").write_text(
        drawing.replace("task: drawn", "task: broken") + "process_results: !function draws.scored\n"
    )
    for group, below in {"few": ["write", "choose"], "same": ["choose"], "bad": ["choose", "broken"]}.items():
        listed = {"group": group, "task": below, "aggregate_metric_list": [{"metric": "acc"}]}
        (folder / f"{group}.yaml").write_text(yaml.safe_dump(listed))
    own = {"group": "odd", "task": [{"task": "choose", "num_fewshot": 1}]}
    (folder / "odd.yaml").write_text(yaml.safe_dump(own))
    (folder / "drawn.yaml").write_text(f"{drawing}process_docs: !function draws.with_numbers\n")
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, `one` and `other`."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "other")):
        tiny.write_model(folder / name, seed=seed)
    return folder
