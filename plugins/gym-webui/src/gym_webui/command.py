"""`gym webui`: the web interface of a folder."""

from __future__ import annotations

from pathlib import Path

import click

from gym_core.errors import RecipeError

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.argument("folder", type=FOLDER, default=Path())
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; by default this machine alone."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--allow", "allowed", multiple=True, type=FOLDER, help="A further folder that recipes may name; again for more."
)
@click.option(
    "--allow-host", "names", multiple=True, help="A name by which browsers reach this server, beside its address."
)
@click.option("--panel", "panels", multiple=True, help="A page of another package, by its name; again for more.")
def webui(
    folder: Path, host: str, port: int, allowed: tuple[Path, ...], names: tuple[str, ...], panels: tuple[str, ...]
) -> None:
    """Serve the web interface of FOLDER, by default this one: recipes by forms, runs, chat and exports.

    It prints a link with a token, which opens it. Runs go on when the page is closed, and when this command ends.

    Example: `gym webui experiments --port 7861`
    """
    from gym_serve.api.options import ApiOptions
    from gym_webui.serving import serve

    for place in (folder, *allowed):
        if place.resolve() == Path(place.anchor or "/"):
            raise RecipeError("is the whole disk", where=str(place), fix="name a folder of your own")
    options = ApiOptions(host=host, port=port, allowed_hosts=names, shutdown_seconds=2.0)
    serve(folder, allowed, options, panels, lambda text: click.echo(text, err=True))
