"""`gym predict`: answers to rows whose answers are known, scored against these."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gym_core.errors import FAILED, DataError
from gym_core.files import write_atomically
from gym_predict.options import RUNNING, PredictOptions
from gym_serve.options import ServingCommand

PREDICTIONS, RESULTS, ALL = "generated_predictions.jsonl", "predict_results.json", "all_results.json"
BETWEEN = "predictions"  #: folder of what is done so far


@click.command(cls=ServingCommand, options=PredictOptions)
@click.argument("given", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def predict(given: Path, words: tuple[str, ...], as_json: bool) -> None:
    """Answer the rows that a finished RUN held out, and score the answers: BLEU-4, ROUGE-1, 2 and L.

    RUN is its folder, its recipe, a checkpoint, or a file of another dialect, such as one of LLaMA-Factory with `do_predict`.
    KEY=VALUE sets an option, or changes the recipe: `data.sources=rows.jsonl rows=all`. The same command again goes on where it
    stopped. Exit code 1 where a row has an error for an answer.

    Example: `gym predict runs/first max_tokens=128`
    """
    from gym_predict.prediction_job import task

    asked = task(given, words)
    results = _predicted(asked)
    if as_json:
        click.echo(json.dumps({"output": str(asked.output), "results": results}))
    else:
        shown = ", ".join(f"{name.removeprefix('predict_')} {value:.4g}" for name, value in results.items())
        click.echo(f"{shown}\nwrote {asked.output / PREDICTIONS}")
    if results["predict_errors"]:
        click.echo(f"rows with an `error` in place of an answer: {results['predict_errors']:,}", err=True)
        click.get_current_context().exit(FAILED)


def _predicted(asked: Any) -> dict[str, Any]:
    """Answer what has no answer yet, and write predictions and results. Raises GymError where nothing can be answered."""
    from gym_predict.rows import known, predictions
    from gym_predict.scores import scores
    from gym_serve.inference.made_by import made_by
    from gym_serve.inference.progress import Progress
    from gym_serve.inference.rows import Answers

    options: PredictOptions = asked.options
    rows = known(asked.recipe, options.rows == "all")
    if not rows.prompts:
        raise DataError("no row is left to answer", key="data", fix="hold out more, or take all of them: `rows=all`")
    settings = {key: value for key, value in options.model_dump(mode="json").items() if key not in RUNNING}
    settings |= made_by(options) | {"rows": rows.fingerprint}
    between = asked.output / BETWEEN / hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    between.mkdir(parents=True, exist_ok=True)
    given, answers_file = between / "prompts.jsonl", between / "answers.jsonl"
    rows.write(given)
    began = time.monotonic()
    with Answers(answers_file, given, settings) as answers:
        before = answers.done
        progress = Progress(len(rows.prompts), before)
        if before < len(rows.prompts):
            asyncio.run(_answered(options, rows.ends, given, answers, progress))
        progress.end()
    seconds, new = time.monotonic() - began, len(rows.prompts) - before
    found = predictions(rows, answers_file)
    write_atomically(asked.output / PREDICTIONS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))
    figures = scores((row["predict"], row["label"]) for row in found)
    results: dict[str, Any] = {f"predict_{name}": value for name, value in figures.items()}
    results |= {"predict_samples": len(found), "predict_errors": sum("error" in row for row in found)}
    if new:
        results |= {"predict_runtime": seconds, "predict_samples_per_second": new / seconds}
    for name in (RESULTS, ALL):
        file = asked.output / name
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        write_atomically(file, json.dumps({**earlier, **results}, indent=2, sort_keys=True))
    return results


async def _answered(options: PredictOptions, ends: frozenset[int], given: Path, answers: Any, progress: Any) -> None:
    from gym_serve.inference.run import Asking, infer, opened
    from gym_serve.template_options import TemplateSettings

    async with opened(options) as (engine, whom):
        progress.began()
        sampling = replace(options.sampling(), stop_token_ids=tuple(sorted(ends)))
        await infer(Asking(engine, whom, sampling, TemplateSettings()), given, answers, options.at_once, progress.told)
