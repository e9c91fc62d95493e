"""`gym plugins check`: whether everything that is installed can be imported and named."""

from __future__ import annotations

import json
from collections import Counter

import click

from gym_core import errors
from gym_core.discovery import Entry, ambiguous, installed, nearest
from gym_core.metadata import canonical
from gym_manage.inspection import inspect_all


@click.command()
@click.argument("distributions", nargs=-1, metavar="[DISTRIBUTION]...")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds that one distribution may take to import.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(distributions: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Import every component, each distribution in a process of its own, and say which ones cannot be used.

    With names of distributions, such as `gym-grpo`, those alone.

    Exit code 3 when one cannot.

    Example: `gym plugins check gym-grpo`
    """
    found = installed()
    problems: dict[str, list[errors.Problem]] = {}
    sizes = Counter(entry.dist for group in found.entries.values() for entry in group)
    versions = {entry.dist: entry.version for group in found.entries.values() for entry in group}
    for name in distributions:
        if canonical(name) not in versions:
            near = nearest(name, sorted(versions))
            fix = f"did you mean `{near}`?" if near else "`gym plugins list` shows all"
            raise errors.PluginError(f"no distribution `{errors.printable(name)}` brings a plugin", fix=fix)
    wanted = set(map(canonical, distributions or versions))
    for dist, told in inspect_all(lambda entry: entry.dist in wanted, timeout).items():
        problems[dist] = list(dict.fromkeys(problem for about in told for problem in about.problems))
    for group in ambiguous():
        if group[0].kind != "facade":
            for entry in group:
                if entry.dist in wanted:
                    problems[entry.dist].append(_unclear(entry, group))
    results = [
        {"dist": dist, "version": versions[dist], "components": sizes[dist], "problems": [p.to_json() for p in own]}
        for dist, own in problems.items()
    ]
    if as_json:
        broken = [problem.to_json() for problem in found.problems]
        click.echo(json.dumps({"distributions": results, "metadata": broken}, indent=2))
    else:
        for dist, own in problems.items():
            mark = click.style("broken", fg="red") if own else click.style("ok", fg="green")
            click.echo(f"{mark:<16} {dist} {versions[dist]}  ({sizes[dist]} entry points)")
            for problem in own:
                click.echo(f"    {problem}".replace("\n", "\n    "))
        for problem in found.problems:
            click.echo(f"{click.style('broken', fg='red')}           {problem}")
    if found.problems or any(problems.values()):
        click.get_current_context().exit(errors.PLUGIN)


def _unclear(entry: Entry, group: list[Entry]) -> errors.Problem:
    names = " and ".join(f"`{other.qualified}`" for other in group[:3])
    fix = f"gym plugins choose {entry.kind}/{entry.name} {group[0].dist}"
    return errors.Problem(f"{names} have one name", entry.title, fix=fix)
