"""Which tokenizer and chat template travel along, and a model that has none; llama.cpp answers where it is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers import AutoTokenizer

from gym_core import Artifact
from gym_export import GGUF, SafetensorsExporter
from gym_export.source import Source


def test_a_model_without_a_tokenizer_says_so_in_the_file(model_path: Path, tmp_path: Path) -> None:
    """Without that llama.cpp loads no file; where it is installed, it answers here."""
    shutil.copytree(model_path, tmp_path / "model")
    for pattern in ("tokenizer*", "chat_template*", "vocab*", "merges*", "special_tokens*", "added_tokens*"):
        for file in (tmp_path / "model").glob(pattern):
            file.unlink()
    written = GGUF(type="f32").build().export(Artifact(tmp_path / "model"), tmp_path / "out")
    field: Any = GGUFReader(written / "model.gguf").get_field("tokenizer.ggml.model")
    assert field is not None and field.contents() == "no_vocab"


def test_a_template_in_the_tokenizers_configuration_is_not_lost_to_a_file_of_the_base(
    model_path: Path, tmp_path: Path
) -> None:
    """Transformers takes `chat_template.jinja` before the one in `tokenizer_config.json`."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(model_path, base)
    adapter.mkdir()
    assert (base / "chat_template.jinja").is_file()
    told = json.loads((base / "tokenizer_config.json").read_text())
    for template in ("the artifact's own", None):  # without one, the base's
        (adapter / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": template}))
        with Source(Artifact(adapter, "adapter", str(base))) as source:
            assert source.tokenizer.chat_template == (template or (base / "chat_template.jinja").read_text())


def test_templates_with_a_name_travel_along_unless_another_was_trained_on(model_path: Path, tmp_path: Path) -> None:
    """Such as that for tools, which transformers takes where a request has some."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(model_path, base)
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/tool_use.jinja").write_text("with tools")
    usual = (base / "chat_template.jinja").read_text()
    written = SafetensorsExporter().build().export(Artifact(base), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(written).chat_template == {"default": usual, "tool_use": "with tools"}
    reader: Any = GGUFReader(GGUF(type="f32").build().export(Artifact(base), tmp_path / "gguf") / "model.gguf")
    found = [reader.get_field(f"tokenizer.chat_template{more}").contents() for more in ("", ".tool_use", "s")]
    assert found == [usual, "with tools", ["tool_use"]]
    (base / "chat_template.jinja").unlink()
    with Source(Artifact(base)) as source:
        assert source.tokenizer.chat_template.keys() == {"tool_use"} and len(source.prompts) == 2, (
            "and no conversations"
        )
    adapter.mkdir()
    (adapter / "chat_template.jinja").write_text("learned")
    with Source(Artifact(adapter, "adapter", str(base))) as source:
        assert source.tokenizer.chat_template == "learned"
