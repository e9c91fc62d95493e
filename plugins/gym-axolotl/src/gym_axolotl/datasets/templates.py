"""The chat template that a file names."""

from __future__ import annotations

from typing import Any

from gym_core.files import expanded
from gym_dialect.convert import note

OURS = {
    "alpaca": "alpaca",
    "chatml": "chatml",
    "gemma": "gemma",
    "llama3": "llama3",
    "qwen_25": "qwen",
    "qwen3": "qwen3",
    "zephyr": "zephyr",
}
"""Names that Gym has a template for, by its name."""
_FAMILIES = (
    "mistral_v1 mistral_v2v3 mistral_v3_tekken mistral_v7_tekken cohere llama3_2_vision llama4 phi_3 phi_35 deepseek_v2 "
    "deepseek_v3 jamba qwen3_5 falcon_h1 nemotron_h exaone exaone4 metharme pixtral llava qwen2_vl gemma3 gemma3n gemma4 "
    "gemma4_unified command_a command_a_tool_use command_a_rag aya"
)
OWN = frozenset(_FAMILIES.split())
"""Names of families whose models bring the template themselves."""
DEFAULT, FALLBACK, GIVEN = "tokenizer_default", "tokenizer_default_fallback_", "jinja"


def template(name: Any, text: Any = None) -> str | dict[str, Any] | None:
    """Return the template of a name, or the one that a file holds; None for the model's own. Raises ValueError for no name."""
    if name == GIVEN or (name is None and text):
        if not text:
            raise ValueError("is the text of `chat_template_jinja`, which is missing")
        path = expanded(str(text)) if "\n" not in str(text) and "{" not in str(text) else None
        return {"name": "jinja", "text": path.read_text(encoding="utf-8") if path and path.is_file() else str(text)}
    if name is None or name == DEFAULT:
        return None
    if str(name).startswith(FALLBACK):
        note(
            f"chat_template: the model's own is used; for a model without one, name {str(name).removeprefix(FALLBACK)}"
        )
        return None
    if str(name) in OURS:
        return OURS[str(name)]
    if str(name) in OWN:
        note(f"chat_template: {name} is that of the model itself")
        return None
    raise ValueError(f"there is no `{name}`: {', '.join([*OURS, DEFAULT, GIVEN])}")
