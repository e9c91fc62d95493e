"""`gym inference`: answers to a file of rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field

from gym_core.errors import FAILED, RecipeError
from gym_serve.answer_options import AnswerOptions
from gym_serve.api.options import ApiOptions
from gym_serve.inference.progress import Progress
from gym_serve.options import ServingCommand, read

RUNNING = {"queue", "max_batch", "prefix_cache_bytes", "tenant_bytes", "tenant_cache_bytes", "at_once"}
"""Options that change no answer."""


class InferenceOptions(AnswerOptions):
    """The options of `gym inference`."""

    at_once: Annotated[int, Field(ge=1)] = 256
    """Rows that are asked at the same time."""
    seed: int | None = 0
    """The same seed gives the same answers, also where the command is stopped and continued."""


@click.command(cls=ServingCommand, options=InferenceOptions)
@click.argument("words", nargs=-1, required=True, metavar="MODEL [KEY=VALUE]...")
@click.option(
    "--input", "given", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file of rows."
)
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file of answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when all rows are answered.")
def inference(words: tuple[str, ...], given: Path, output: Path, as_json: bool) -> None:
    """Answer each row of a JSONL file, in order; the same command again goes on where it stopped.

    A row has `messages` (and `tools`), a `prompt`, its `tokens`, or an `instruction`, and perhaps sampling options; or it is a
    request of a batch file, with `custom_id`, `url` and `body`. MODEL is a run, a checkpoint, an artifact or a model, or a YAML
    file with a section `serving`, or one of LLaMA-Factory. Exit code 1 where a row has an error for an answer.

    Example: `gym inference runs/first --input questions.jsonl --output answers.jsonl max_tokens=200`
    """
    options = read(InferenceOptions, words, {}, beside=ApiOptions.model_fields)
    if len(options.models) != 1:
        raise RecipeError(
            "takes one model", key="models", fix="name one, and its adapters with `adapters.NAME=PATH tenant=NAME`"
        )
    from gym_serve.inference.made_by import made_by
    from gym_serve.inference.rows import Answers, count

    total = count(given)
    settings = {key: value for key, value in options.model_dump(mode="json").items() if key not in RUNNING}
    settings |= made_by(options)
    with Answers(output, given, settings) as answers:
        before = answers.done
        progress = Progress(total, before)
        if before < total:
            asyncio.run(_run(options, given, answers, progress))
        progress.end()
    failed = _errors(output)
    if as_json:
        click.echo(json.dumps({"output": str(output), "rows": total, "from_before": before, "errors": failed}))
    click.echo(f"{total:,} rows in {output}" + f", {before:,} of them from before" * bool(before), err=True)
    if failed:
        click.echo(f"rows with an `error` in place of an answer: {failed:,}", err=True)
        click.get_current_context().exit(FAILED)


async def _run(options: InferenceOptions, given: Path, answers: Any, progress: Progress) -> None:
    from gym_serve.inference.run import Asking, infer, opened

    async with opened(options) as (engine, whom):
        progress.began()
        asking = Asking(engine, whom, options.sampling(), options, options.system)
        await infer(asking, given, answers, options.at_once, progress.told)


def _errors(output: Path) -> int:
    """Return how many answers say that there is none."""
    with output.open("rb") as file:
        return sum(bool(json.loads(line).get("error")) for line in file if b'"error"' in line)
