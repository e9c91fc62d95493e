"""`gym plugins`: list what is installed from metadata alone, show one component, and check that everything imports."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from gym_core import errors
from gym_core.discovery import Entry, installed

_HIDDEN = {"flat", "facade", "remarks"}  #: groups that hold no components of their own


@click.group()
def plugins() -> None:
    """List, show and check what is installed."""


@plugins.command("list")
@click.option("--kind", help="Only this kind, such as `algorithms`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(kind: str | None, as_json: bool) -> None:
    """List every component by kind, without importing any."""
    found = installed()
    groups = {name: group for name, group in found.entries.items() if name not in _HIDDEN and kind in (None, name)}
    if kind and not groups:
        raise errors.PluginError(f"nothing of kind `{kind}` is installed", fix=f"kinds: {', '.join(found.entries)}")
    if as_json:
        fields = [entry._asdict() for group in groups.values() for entry in group]
        listed = [{key: value for key, value in entry.items() if key != "metadata"} for entry in fields]
        click.echo(json.dumps({"plugins": listed, "problems": [p.to_json() for p in found.problems]}, indent=2))
        return
    width = max((len(entry.name) for group in groups.values() for entry in group), default=0)
    owners = max((len(entry.dist + entry.version) + 1 for group in groups.values() for entry in group), default=0)
    for name, group in groups.items():
        click.secho(name, bold=True)
        duplicates = {entry.name for entry in group if sum(entry.name == other.name for other in group) > 1}
        for entry in group:
            note = click.style(f"  ambiguous: write {entry.qualified}", fg="yellow") if entry.name in duplicates else ""
            owner = f"{entry.dist} {entry.version}"
            click.echo(f"  {entry.name:<{width}}  {owner:<{owners}}  {entry.paper}".rstrip() + note)
    for problem in found.problems:
        click.secho(f"warning: {problem}", fg="yellow", err=True)


@plugins.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, as_json: bool) -> None:
    """Show a component: what it does, its options, its paper and its flat keys. NAME may be `kind/name`."""
    from gym_core.describe import describe

    kind, _, short = name.rpartition("/")
    matches = [
        entry
        for group in installed().entries.values()
        for entry in group
        if entry.kind not in _HIDDEN
        and (entry.name == short or entry.qualified == name)
        and kind in ("", entry.kind, entry.dist)
    ]
    if not matches:
        raise errors.PluginError(f"nothing named `{name}` is installed", fix="`gym plugins list` shows all")
    described = [describe(entry) for entry in matches]
    if as_json:
        click.echo(json.dumps({"components": described}, indent=2))
        return
    for item in described:
        _print(item)


def _print(item: dict[str, Any]) -> None:
    click.secho(f"{item['kind']}/{item['name']}", bold=True, nl=False)
    click.echo(f"  {item['dist']} {item['version']}  {item['paper']}".rstrip())
    click.echo(f"{item['doc']}\n")
    for option in item["options"]:
        flat = f"  [{', '.join(option['flat'])}]" if option["flat"] else ""
        click.echo(f"  {option['name']}: {option['type']} = {option['default']}{flat}\n      {option['doc']}")
    click.echo()


@plugins.command()
@click.option("--timeout", default=20.0, show_default=True, help="Seconds that one plugin may take to import.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(timeout: float, as_json: bool) -> None:
    """Import every component, each distribution in a process of its own, and say which ones cannot be used.

    Exit code 3 when one cannot.
    """
    found = installed()
    owners: dict[str, list[Entry]] = {}
    for group in found.entries.values():
        for entry in group:
            owners.setdefault(entry.dist, []).append(entry)
    results = [_check_owner(dist, owned, timeout) for dist, owned in sorted(owners.items())]
    bad = [result for result in results if result["problems"]]
    broken = [problem.to_json() for problem in found.problems]
    if as_json:
        click.echo(json.dumps({"distributions": results, "metadata": broken}, indent=2))
    else:
        for result in results:
            mark = click.style("broken", fg="red") if result["problems"] else click.style("ok", fg="green")
            click.echo(f"{mark:<16} {result['dist']} {result['version']}  ({result['components']} entry points)")
            for problem in result["problems"]:
                click.echo(f"    {errors.Problem(**problem)}".replace("\n", "\n    "))
        for problem in found.problems:
            click.echo(f"{click.style('broken', fg='red')}           {problem}")
    if bad or broken:
        click.get_current_context().exit(errors.PLUGIN)


def _check_owner(dist: str, owned: list[Entry], timeout: float) -> dict[str, Any]:
    result: dict[str, Any] = {"dist": dist, "version": owned[0].version, "components": len(owned)}
    command = [sys.executable, "-m", "gym_core.cli.check", dist]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"importing it did not end within {timeout:g} s"
        return result | {"problems": [errors.Problem(why, dist, fix=f"update or uninstall {dist}").to_json()]}
    try:
        problems = json.loads(done.stdout.rpartition("\n\0")[2])
    except ValueError:
        why = f"importing it ended the process with status {done.returncode}"
        problems = [errors.Problem(why, dist, fix=f"update or uninstall {dist}").to_json()]
    return result | {"problems": problems}
