"""`gym variants`: what a store holds for its users."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_core import GymError
from gym_core.errors import FAILED, Problem, printable
from gym_data.byte_size import written

if TYPE_CHECKING:
    from gym_bitdelta.store import Variant, VariantStore

_store = click.option(
    "--store",
    "root",
    envvar="GYM_VARIANTS",
    default="variants",
    show_default=True,
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the store.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_COLUMNS = ("USER", "VERSION", "KIND", "SIZE", "CREATED", "QUALITY", "SAFETY")


@click.group()
def variants() -> None:
    """Look at the variants of users, check them, and make room."""


@variants.command("list")
@_store
@_json
def list_(root: Path, as_json: bool) -> None:
    """List the variant of each user. Version, size and what was measured stand beside it."""
    with _opened(root) as store:
        found = store.listing()
    if as_json:
        told = [each.to_json() for each in found.variants]
        _print_json({"store": str(root), "variants": told, "damaged": _plain(found.damaged)})
    else:
        _print_table(found.variants)
        size = sum(each.bytes for each in found.variants)
        click.echo(f"{len(found.variants):,} variants, {written(size)}, in {root}")
    _end(found.damaged, as_json)


@variants.command()
@click.argument("user")
@_store
@_json
def show(user: str, root: Path, as_json: bool) -> None:
    """Show the variant of a USER. Its files, what was measured and the versions before it are listed.

    Example: `gym variants show anna`
    """
    with _opened(root) as store:
        found = store.lineage(user)
    newest = found[-1]
    if as_json:
        _print_json({**newest.to_json(), "lineage": [each.to_json() for each in found[:-1]]})
        return
    click.echo(f"{printable(user)}, version {newest.number}, {newest.id}")
    click.echo(
        f"  {newest.artifact['kind']} of {printable(newest.artifact['base'] or 'an unnamed base')}, {newest.created}"
    )
    click.echo(f"  quality: {_evidence(newest.quality)}")
    click.echo(f"  safety: {_evidence(newest.safety)}")
    for file in newest.files:
        click.echo(f"  {file.bytes:>14,} bytes  {file.sha256[:12]}  {printable(file.name)}")
    for before in reversed(found[:-1]):
        told = f"quality {_evidence(before.quality)}; safety {_evidence(before.safety)}"
        click.echo(f"  after version {before.number}, {before.id[:12]}, {before.created}: {told}")


@variants.command()
@click.argument("users", nargs=-1, metavar="[USER]...")
@_store
@_json
def verify(users: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Read all files, and name what is not what was written. Of these users, or of everybody; exit code 1 if there is any.

    Example: `gym variants verify anna bert`
    """
    with _opened(root) as store:
        found = store.listing()
        damaged = [*store.problems(), *(found.damaged if not users else [])]
        checked = size = 0
        for user in users or [each.user for each in found.variants]:
            try:
                size += store.verify(user).bytes
                checked += 1
            except GymError as error:
                damaged += error.problems
    if as_json:
        _print_json({"store": str(root), "sound": checked, "bytes": size, "damaged": _plain(damaged)})
    else:
        click.echo(f"{checked:,} variants are sound, {written(size)}, in {root}")
    _end(damaged, as_json)


@variants.command()
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@_store
@_json
def remove(users: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Remove the variants of USERs, with their files and lineage. Who serves one now goes on with it.

    Example: `gym variants remove anna`
    """
    with _opened(root) as store:
        for user in users:
            store.remove(user)
    if as_json:
        _print_json({"store": str(root), "removed": list(users)})
    else:
        click.echo(f"removed {len(users):,} of the variants in {root}")


@variants.command()
@_store
@_json
def gc(root: Path, as_json: bool) -> None:
    """Take away what killed processes left. What is in use, or open anywhere, stays."""
    with _opened(root) as store:
        found = store.gc()
    if as_json:
        _print_json({"store": str(root), **found._asdict()})
    else:
        left = f"and what {found.processes:,} dead processes had open" if found.processes else ""
        click.echo(f"removed {found.files:,} files, {written(found.bytes)} {left}".rstrip())


def _opened(root: Path) -> VariantStore:
    from gym_bitdelta.store import VariantStore

    return VariantStore(root, create=False)


def _print_table(found: Iterable[Variant]) -> None:
    rows = [
        (
            printable(each.user),
            f"{each.number}-{each.id[:12]}",
            each.artifact["kind"],
            written(each.bytes),
            each.created,
            _evidence(each.quality, 40),
            _evidence(each.safety, 40),
        )
        for each in found
    ]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in [_COLUMNS, *rows] if rows else []:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _evidence(found: Any, most: int = 2000) -> str:
    """Return evidence in a line."""
    if isinstance(found, str):
        return found
    if isinstance(found.get("summary"), str):
        return printable(found["summary"], most)
    told = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items())
    return printable(", ".join(told), most)


def _plain(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [each.to_json() for each in problems]


def _print_json(found: dict[str, Any]) -> None:
    click.echo(json.dumps(found, indent=2, ensure_ascii=False))


def _end(damaged: Sequence[Problem], as_json: bool) -> None:
    """End with what is damaged, which a JSON object has already."""
    if damaged and as_json:
        raise click.exceptions.Exit(FAILED)
    if damaged:
        raise GymError(damaged)
