"""The types and keys of datasets as Markdown, for a page that people read."""

from __future__ import annotations

from gym_axolotl.datasets import conversations, instructions, judged, templates
from gym_axolotl.datasets.entry import FALSE, REASONS, UNREAD


def markdown() -> list[str]:
    """Return the lines of the tables of `datasets`."""
    styles = ", ".join(f"`:{style}`" for style in instructions.STYLES)
    columns = ", ".join(f"`{name}`" for name in instructions.COLUMNS)
    asked = ", ".join(f"`.{variant}`" for variant in judged.ASKED)
    families = " or ".join(f"`{family}`" for family in judged.WRITTEN)
    rows = {
        ", ".join(f"`{name}`" for name in conversations.TYPES): "messages, written by the chat template",
        f"{columns}, perhaps with a style: {styles}": "`axolotl_instruct`: plain text, its columns and its format",
        "`field_instruction`, `format` and so on, written out": "`axolotl_instruct`",
        "`input_output`": "`segments`",
        ", ".join(f"`{name}`" for name in instructions.TEXTS): "`text`, and `algorithm: pretrain`",
        "with `rl: dpo`, `ipo`, `orpo`, `simpo`: `chat_template.default`, `chat_template.argilla`": "`preference`",
        f"the same: {families} and {asked}, `.argilla_chat`": "`preference` with that template",
        "with `rl: kto`: the same": "`feedback` with that template",
        "with `reward_model`: `bradley_terry.chat_template`": "`preference`",
        "with `process_reward_model`: `stepwise_supervised`": "`stepwise`",
        "with `rl: grpo`, `gdpo`: `chat_template`, or none": "prompts",
    }
    lines = ["", "## Types of datasets", "", "| `type` | Rows are read as |", "|---|---|"]
    lines += [f"| {kind} | {means} |" for kind, means in rows.items()]
    lines += ["", "## Keys of a dataset that are refused", "", "| Key | Why | Instead |", "|---|---|---|"]
    lines += [f"| `{key}` | {why} | {fix} |" for key, (why, fix) in REASONS.items()]
    off = ", ".join(f"`{key}`" for key in FALSE)
    lines += ["", f"{off} may be false. {', '.join(f'`{key}`' for key in UNREAD)} changes no result."]
    lines += ["", "## Chat templates", "", "| `chat_template` | Means |", "|---|---|"]
    lines += [f"| `{name}` | `data.template: {ours}` |" for name, ours in templates.OURS.items()]
    own = ", ".join(f"`{name}`" for name in sorted(templates.OWN))
    lines += [f"| `{templates.DEFAULT}`, `{templates.FALLBACK}...` | that of the model |"]
    lines += [f"| {own} | that of the model, which a line says |"]
    return [*lines, f"| `{templates.GIVEN}` | the text, or the file, of `chat_template_jinja` |"]
