"""`gym plugins`: what is installed, from metadata alone."""

from __future__ import annotations

import json

import click

from gym_core import errors
from gym_core.cli import Commands
from gym_core.discovery import Entry, ambiguous, catalogue, installed

HIDDEN = {"advice", "facade", "remarks"}  #: groups that hold no components of their own
TO_FINE_TUNE = ("algorithms/sft", "backends/transformers", "data/dataset", "optimizers/adamw", "adapters/lora")


@click.group(cls=Commands)
def plugins() -> None:
    """List and manage what is installed."""


@plugins.command("list")
@click.option("--kind", help="Only this kind, such as `algorithms`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(kind: str | None, as_json: bool) -> None:
    """List every component by kind."""
    found = installed()
    groups = {name: group for name, group in found.entries.items() if name not in HIDDEN and kind in (None, name)}
    off = [entry for entry in found.disabled if entry.kind not in HIDDEN and kind in (None, entry.kind)]
    if kind and not (groups or off):
        packages = sorted({package for name, package in catalogue().items() if name.startswith(f"{kind}/")})
        fix = f"pip install {' '.join(packages)}" if packages else f"kinds: {', '.join(found.entries)}"
        raise errors.PluginError(f"nothing of kind `{kind}` is installed", fix=fix)
    if as_json:
        listed = {"plugins": [entry for group in groups.values() for entry in group], "disabled": off}
        told = {key: [_plain(entry) for entry in group] for key, group in listed.items()}
        click.echo(json.dumps({**told, "problems": [problem.to_json() for problem in found.problems]}, indent=2))
        return
    lines = _lines(groups) + [f"disabled  {entry.kind}/{entry.name}  {entry.dist} {entry.version}" for entry in off]
    click.echo("\n".join(lines) if lines else _nothing())
    for problem in found.problems:
        click.secho(f"warning: {problem}", fg="yellow", err=True)


def _plain(entry: Entry) -> dict[str, str]:
    return {key: value for key, value in entry._asdict().items() if key != "metadata"}


def _lines(groups: dict[str, list[Entry]]) -> list[str]:
    width = max((len(entry.name) for group in groups.values() for entry in group), default=0)
    owners = max((len(entry.dist + entry.version) + 1 for group in groups.values() for entry in group), default=0)
    unclear = {entry for group in ambiguous() for entry in group}
    lines = []
    for name, group in groups.items():
        lines.append(click.style(name, bold=True))
        for entry in group:
            note = click.style(f"  ambiguous: write {entry.qualified}", fg="yellow") if entry in unclear else ""
            owner = f"{entry.dist} {entry.version}"
            lines.append(f"  {entry.name:<{width}}  {owner:<{owners}}  {entry.paper}".rstrip() + note)
    return lines


def _nothing() -> str:
    """Return the message for an installation without plugins."""
    known = {name: package for name, package in catalogue().items() if not name.startswith(("facade/", "absent/"))}
    first = dict.fromkeys(known[name] for name in TO_FINE_TUNE if name in known)
    packages = ", ".join(sorted({*known.values()}))
    return f"No plugin is installed. To fine-tune: pip install {' '.join(first)}\nKnown packages: {packages}"
