"""`gym personalize`: a variant for each user, from a folder with a file for each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_core.dialect import apply_override
from gym_core.errors import FAILED, GymError, RecipeError
from gym_core.files import expanded
from gym_core.yamlfile import parse_scalar, read_yaml
from gym_personalization.users import users_in

if TYPE_CHECKING:
    from gym_personalization.training_engine import Engine
    from gym_personalization.variants import Variant

PAUSE = 5.0  #: seconds between two lines where there is no terminal


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--users", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of USER.jsonl files."
)
@click.option(
    "--at-once", default=64, show_default=True, type=click.IntRange(min=1), help="Most users in training at a time."
)
@click.option("--tokens", type=click.IntRange(min=1), help="Most tokens in one pass; default what suits the device.")
@click.option("--turn", type=click.IntRange(min=1), help="Steps after which a user makes room; default when finished.")
@click.option("--update", is_flag=True, help="Who has a variant goes on from it with these rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def personalize(
    recipe: Path,
    overrides: tuple[str, ...],
    users: Path,
    at_once: int,
    tokens: int | None,
    turn: int | None,
    update: bool,
    as_json: bool,
) -> None:
    """Train the adapters of all users together over one base; the same command again goes on where it stopped.

    RECIPE is that of any run; the file of each user takes the place of its `data.sources`. Exit code 1 where a user failed.
    With --update users who have a variant go on from it, those who have none get one, and whose rows are those learnt last stay.

    Example: `gym personalize recipe.yaml --users rows/ train.epochs=2`
    """
    from gym_personalization.trainer import PersonalizedTrainer  # torch takes its time

    raw = _overridden(read_yaml(recipe).data, overrides)
    model = raw.pop("model", None)
    if not model:
        raise RecipeError("no model is named", where=str(recipe), key="model", fix="add, for example, `model: tiny`")
    output = expanded(raw.pop("output", "variants"))
    compress = raw.pop("quantization", None)
    trainer = PersonalizedTrainer(
        model, compress, output=output, recipe=raw, users_at_once=at_once, tokens_at_once=tokens
    )
    given = users_in(users)
    with trainer, _bar(len(given)) as bar:
        found = trainer.create_variants(given, told=bar.told, turn=turn, done=bar.done, update=update)
    report: dict[str, Any] = {"output": str(output), "variants": {}, "failed": {}}
    for user, made in found.items():
        if isinstance(made, GymError):
            report["failed"][user] = str(made)
        else:
            report["variants"][user] = {
                "path": str(made.artifact.path),
                "version": made.version,
                "bytes": made.bytes,
                "safety": made.safety,
            }
    click.echo(json.dumps(report) if as_json else _text(report))
    if report["failed"]:
        click.get_current_context().exit(FAILED)


def _overridden(raw: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the raw sections of a recipe with `KEY=VALUE` words applied."""
    raw = deepcopy(raw)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise RecipeError(f"`{override}` is not key=value", where="command line")
        apply_override(raw, key, parse_scalar(text))
    return raw


class _Bar:
    """Shows how far the users are: a line that changes where there is a terminal, one now and then where there is none."""

    def __init__(self, users: int, show: Callable[[str], None]) -> None:
        self._users, self._show = users, show
        self._began, self._steps, self._finished, self._failed = time.monotonic(), 0, 0, 0

    def told(self, engine: Engine) -> None:
        """Take note of a step."""
        self._steps += 1
        speed = self._steps / max(time.monotonic() - self._began, 1e-9)
        self._say(f"; step {self._steps:,} with {len(engine.present)} in training, {speed:.2f} steps/s")

    def done(self, user: str, made: Variant | GymError) -> None:
        """Take note of a user who is finished, or failed."""
        self._failed += isinstance(made, GymError)
        self._finished += not isinstance(made, GymError)
        self._say("")

    def _say(self, more: str) -> None:
        failed = f", {self._failed:,} failed" if self._failed else ""
        self._show(f"{self._finished:,} of {self._users:,} users finished{failed}{more}")


@contextmanager
def _bar(users: int) -> Iterator[_Bar]:
    """Yield what is told of steps and users, and shows them."""
    from gym_torch.console import console, say

    last = time.monotonic()

    def now_and_then(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            say(line)

    status = console().status("loading the base") if console().is_terminal else None
    with status or nullcontext():
        yield _Bar(users, status.update if status is not None else now_and_then)


def _text(report: dict[str, Any]) -> str:
    sizes = [made["bytes"] for made in report["variants"].values()]
    lines = [f"{len(sizes)} variants in {report['output']}"]
    if sizes:
        lines[0] += f", {sum(sizes) / len(sizes):,.0f} bytes each"
        unknown = sum(made["safety"] == "not evaluated" for made in report["variants"].values())
        lines += [f"safety: {unknown} not evaluated, {len(sizes) - unknown} measured (`gym variants list` shows it)"]
    lines += [f"FAILED {user}: {why}" for user, why in report["failed"].items()]
    return "\n".join(lines)
