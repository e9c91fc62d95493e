"""The tables of keys as Markdown, for a page that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gym_dialect.stated import Stated
from gym_dialect.table import Choice, Key


def markdown(
    choices: Iterable[Choice], keys: Iterable[Key], stated: Mapping[str, Stated], further: Iterable[str] = ()
) -> list[str]:
    """Return the lines of the tables: keys that choose a component, that fill an option, that are refused, that count nowhere.

    `further` are lines of a section of its own, behind those that fill an option.
    """
    lines = ["## Keys that choose a component", "", "| Key | Value | Means |", "|---|---|---|"]
    for row in sorted(choices, key=lambda row: row.key):
        named: dict[str, list[str]] = {}
        for value, name in row.names.items():
            named.setdefault(name, []).append("any value" if value == "*" else f"`{value}`")
        named.pop("", None)  # what chooses nothing
        for name, values in named.items():
            left = ", the default" if name == row.default else ""
            lines += [f"| `{row.key}` | {', '.join(values)} | `{row.section}: {name}`{left} |"]
        instead: dict[str, list[str]] = {}
        for value, advice in row.refused.items():
            instead.setdefault(advice, []).append(f"`{value}`")
        lines += [
            f"| `{row.key}` | {', '.join(values)} | refused: set {advice} |" for advice, values in instead.items()
        ]
    lines += [
        "",
        "## Keys that fill an option",
        "",
        "| Key | Option | Of | Left out | Where it counts |",
        "|---|---|---|---|---|",
    ]
    for key in sorted(keys, key=lambda key: (key.key, key.option)):
        of = ", ".join(f"`{name}`" for name in key.of.split())
        left = f"`{_shown(key.default)}`" if key.default not in (None, "") else ""
        by = f"where `{key.chosen_by}` chooses" if key.chosen_by else ""
        said = f"`{key.key}`" if key.key else "every file"
        lines += [f"| {said} | `{key.option}` | {of} | {left} | {by} |"]
        beside = f"with `{key.key}`" if key.key else ""
        lines += [f"| `{more}` | `{key.option}` | {of} |  | {beside} |" for more in key.together.split()]
    lines += further
    lines += [
        "",
        "## Keys that may say what is done anyway",
        "",
        "| Key | May say | Else refused | Instead |",
        "|---|---|---|---|",
    ]
    for name, entry in sorted((name, entry) for name, entry in stated.items() if entry.values):
        lines += [f"| `{name}` | {_all_shown(entry.values)} | {entry.why} | {entry.fix} |"]
    lines += ["", "## Keys that change nothing here", "", "| Key | Why |", "|---|---|"]
    lines += [f"| `{name}` | {entry.why} |" for name, entry in sorted(stated.items()) if not entry.values]
    return lines


def _all_shown(values: tuple[object, ...]) -> str:
    """Write what a key may say, each once."""
    return ", ".join(
        dict.fromkeys(f"`{'null' if value is None else _shown(value)}`" for value in values if value not in ("", []))
    )


def _shown(value: object) -> str:
    """Write a default as a file would."""
    if isinstance(value, bool):
        return str(value).lower()
    if value == ():
        return "[]"
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
