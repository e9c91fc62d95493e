"""`gym doctor`: what this machine and this installation are, and what is wrong with them."""

from __future__ import annotations

import json

import click

from gym_core import errors


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check this machine and its installation, without importing a plugin. Exit code 1 when something is wrong."""
    from gym_core.doctor import checks

    found = checks()
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in found]}, indent=2))
    else:
        for check in found:
            mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark} {check.name}: {check.detail}")
            if not check.ok and check.fix:
                click.echo(f"     -> {check.fix}")
    if not all(check.ok for check in found):
        click.get_current_context().exit(errors.FAILED)
