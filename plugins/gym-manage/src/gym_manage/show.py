"""`gym plugins show`: what a component is, and where its distribution is from, as its metadata say."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from gym_core import errors
from gym_core.cli.plugins import HIDDEN
from gym_core.discovery import Entry, installed, nearest
from gym_core.errors import printable
from gym_core.metadata import read_file, read_headers
from gym_manage.inspection import About, inspect_all


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, as_json: bool) -> None:
    """Show a component: what it does, its options, its paper, and where its package is from.

    NAME may be `kind/name`.

    Example: `gym plugins show adapters/lora`
    """
    kind, _, short = name.rpartition("/")

    def wanted(entry: Entry) -> bool:
        meant = entry.name == short and kind in ("", entry.kind, entry.dist)
        return meant and entry.kind not in HIDDEN

    shown = {kind: group for kind, group in installed().entries.items() if kind not in HIDDEN}
    matches = [entry for group in shown.values() for entry in group if wanted(entry)]
    if not matches:
        near = nearest(short, sorted({entry.name for group in shown.values() for entry in group}))
        fix = f"did you mean `{near}`?" if near else "`gym plugins list` shows all"
        raise errors.PluginError(f"nothing named `{printable(name)}` is installed", fix=fix)
    told = {(dist, item.kind): item for dist, group in inspect_all(wanted).items() for item in group}
    broken = [problem for item in told.values() for problem in item.problems]
    if broken and all(item.problems for item in told.values()):
        raise errors.PluginError(broken)
    described = [_described(entry, told[entry.dist, entry.kind]) | provenance(entry) for entry in matches]
    if as_json:
        click.echo(json.dumps({"components": described}, indent=2))
        return
    for item in described:
        _print(item)
    for problem in broken:
        click.secho(f"warning: {problem}", fg="yellow", err=True)


def _described(entry: Entry, about: About) -> dict[str, Any]:
    head = {key: value for key, value in entry._asdict().items() if key in ("kind", "name", "dist", "version", "paper")}
    return head | about.model_dump(include={"doc", "target", "options"})


def _print(item: dict[str, Any]) -> None:
    click.secho(f"{item['kind']}/{item['name']}", bold=True, nl=False)
    click.echo(f"  {item['dist']} {item['version']}  {item['paper']}".rstrip())
    click.echo(
        "".join(f"  {key}: {printable(item[key], 200)}\n" for key in ("from", "author", "licence") if item[key]),
        nl=False,
    )
    click.echo(f"{printable(item['doc'], 20_000, keep=chr(10))}\n")
    for option in item["options"]:
        default = ", required" if option["default"] == "required" else f" = {option['default']}"
        click.echo(printable(f"  {option['name']}: {option['type']}{default}"))
        click.echo(printable(f"      {option['doc']}"))
    click.echo()


def provenance(entry: Entry) -> dict[str, str]:
    """Return `author`, `licence`, `from` (a package index, an address with its commit, or an editable folder) and `urls`."""
    try:
        headers = read_headers(entry.metadata)
    except (OSError, UnicodeDecodeError):  # discovery reports the metadata themselves
        headers = {}
    first = {name: values[0] for name, values in headers.items()}
    licence = first.get("License-Expression") or first.get("License") or "not stated"
    return {
        "author": printable(first.get("Author") or first.get("Author-email") or "not stated", 200),
        "licence": printable(licence, 200),
        "from": printable(_source(entry.metadata), 300),
    }


def _source(folder: str) -> str:
    """Read `direct_url.json` (PEP 610), which pip writes of everything that is not from a package index."""
    try:
        found: Any = json.loads(read_file(os.path.join(folder, "direct_url.json")))
        url, vcs, info = found["url"], found.get("vcs_info", {}), found.get("dir_info", {})
        commit = f" at {vcs['commit_id']}" if vcs else ""
        return f"{url}{commit}{' (editable)' if info.get('editable') else ''}"
    except FileNotFoundError:
        return "a package index"
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return "unknown: its direct_url.json cannot be read"
