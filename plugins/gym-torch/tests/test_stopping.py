"""A trained model stops where the chat template that it learnt from ends the assistant's turn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gym_torch_bench import make_run, train
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from gym_adapters import LoRA
from gym_data import DatasetConfig, File
from gym_data.templates import ChatML, Default
from gym_export import SafetensorsExporter
from gym_sft import SFT
from gym_torch.generation.generator import stop_ids
from gym_torch.model import stop_tokens

END, OTHER = 258, 256  #: `<|im_end|>` and the token that ends a text
ROWS = [{"instruction": "a", "output": "bc"}]


@pytest.fixture
def base(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base model: no chat template, and texts end with another token than turns."""
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    path = shutil.copytree(model_path, tmp_path / "base")
    (path / "chat_template.jinja").unlink()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((path / name).read_text())
        ends = {"eos_token": "<|endoftext|>"} if name.startswith("tokenizer") else {"eos_token_id": OTHER}
        (path / name).write_text(json.dumps(content | ends))
    return path


def data(tmp_path: Path, template: object) -> DatasetConfig:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    return DatasetConfig(sources=[File(path=str(tmp_path / "rows.json"))], template=template)


def test_plain_transformers_stops_where_the_learnt_template_ends_a_turn(base: Path, tmp_path: Path) -> None:
    run = make_run(base, tmp_path / "run", data(tmp_path, ChatML()), SFT(), max_steps=40)
    made = train(run)
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    model = AutoModelForCausalLM.from_pretrained(made.path)
    assert tokenizer.eos_token_id == END
    assert model.generation_config.eos_token_id == [END, OTHER]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(found) == "bc<|im_end|>"


def test_an_adapter_says_it_too_and_its_export_keeps_it(base: Path, tmp_path: Path) -> None:
    sections = {"adapter": LoRA()}
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/tool_use.jinja").write_text("was not trained on")
    made = train(make_run(base, tmp_path / "run", data(tmp_path, ChatML()), SFT(), sections, max_steps=1))
    exported = SafetensorsExporter().build().export(made, tmp_path / "export")
    for path in (made.path, exported):
        assert GenerationConfig.from_pretrained(path).eos_token_id == [END, OTHER]
        assert AutoTokenizer.from_pretrained(path).eos_token_id == END
        template = AutoTokenizer.from_pretrained(path).chat_template
        assert isinstance(template, str) and "im_start" in template


def test_rollouts_stop_there_while_it_trains(base: Path, tmp_path: Path) -> None:
    run = make_run(base, tmp_path / "run", data(tmp_path, ChatML()), SFT(), max_steps=1)
    model = run.recipe.model.build(run=run)
    assert END in stop_ids(model.model, stop_tokens.of_chats(run.recipe, model))


def test_a_template_that_ends_turns_as_texts_end_changes_nothing(base: Path, tmp_path: Path) -> None:
    made = train(make_run(base, tmp_path / "run", data(tmp_path, Default()), SFT(), max_steps=1))
    assert GenerationConfig.from_pretrained(made.path).eos_token_id == OTHER
    assert AutoTokenizer.from_pretrained(made.path).eos_token_id == OTHER
