"""The chat template of the result of a merge, where it is not simply that of the first input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gym_core import GymError
from gym_core.loading import load_component
from gym_data.chat.render import ChatTemplate
from gym_data.tokenizer_files import TEMPLATE_FILE
from gym_torch.checkpoints.tokenizer_files import remove_templates

KEY = "chat_template"
AUTO = "auto"  #: the one that most models have


def template_of(path: Path) -> str:
    """Return the chat templates of a model; empty where it has none."""
    files = sorted(path.glob("chat_template.*"))
    config = path / "tokenizer_config.json"
    inside = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    return "\n".join(each.read_text(encoding="utf-8") for each in files) or str(inside.get(KEY) or "")


def chosen_template(said: str, models: Sequence[Path]) -> str:
    """Return the text of a template: the most frequent one, a named one, or the text itself; empty where no model has any.

    Raises PluginError where no template has that name, and GymError where the text is none.
    """
    if "{" in said:
        try:
            ChatTemplate(said).check()
        except ValueError as error:
            raise GymError(str(error), key=KEY, fix="mend its text") from None
        return said
    if said == AUTO:
        counted = Counter(text for each in models if (text := template_of(each)))
        return counted.most_common(1)[0][0] if counted else ""
    _, cls = load_component("templates", said, key=KEY)
    return str(cls().build())


def write_template(text: str, folder: Path) -> None:
    """Make this the one chat template of a model directory."""
    remove_templates(folder)
    config = folder / "tokenizer_config.json"
    if config.is_file():
        told = json.loads(config.read_text(encoding="utf-8"))
        if told.pop(KEY, None) is not None:
            config.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / TEMPLATE_FILE).write_text(text, encoding="utf-8")
