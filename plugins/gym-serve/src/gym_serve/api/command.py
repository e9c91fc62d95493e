"""`gym api`: the HTTP server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import click

from gym_serve.api.options import ApiOptions
from gym_serve.options import ServingCommand, ServingOptions, read


class ApiServing(ServingOptions, ApiOptions):
    """The options of `gym api`."""

    def bounded(self) -> Self:
        """Return the same with a bound of what may be in work: where none is named, what the engine takes."""
        return self.model_copy(update={"max_concurrent": self.max_concurrent or self.max_batch + self.queue})


@click.command(cls=ServingCommand, options=ApiServing)
@click.argument("words", nargs=-1, required=True, metavar="MODEL... [KEY=VALUE]...")
@click.option("--host", help="Address to listen on; by default this machine alone.")
@click.option("--port", type=int, help="Port to listen on; default 8000.")
@click.option("--tokens", type=click.Path(path_type=Path, dir_okay=False), help="YAML file of tokens and their models.")
def api(words: tuple[str, ...], host: str | None, port: int | None, tokens: Path | None) -> None:
    """Serve runs and models to clients of OpenAI and of Anthropic.

    MODEL is a run, a checkpoint, an artifact or a model, or a YAML file with a section `serving`, or one of LLaMA-Factory.
    KEY=VALUE sets an option. Without a token it listens to this machine alone; elsewhere one is made and shown.

    Example: `gym api runs/first other=runs/second --port 8001 max_batch=16`
    """
    fixed: dict[str, Any] = {"host": host, "port": port, "tokens": tokens}
    options = read(ApiServing, words, fixed).bounded()
    from gym_serve.api.server import listening, serve, tokens_of

    def show(text: str) -> None:
        click.echo(text, err=True)

    known, socket = tokens_of(options, show), listening(options)  # before a model is loaded for nothing
    serve(options.build(), options, known, socket, show)
