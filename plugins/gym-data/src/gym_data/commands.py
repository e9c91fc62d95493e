"""`gym data`: looking at what a recipe trains on, and at what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gym_core import RecipeError, cache_dir, load_recipe
from gym_data.byte_size import written
from gym_data.kinds import Data


@click.group()
def data() -> None:
    """Look at the data of a recipe, and at the token cache."""


@data.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--count", default=3, show_default=True, type=click.IntRange(min=0), help="How many examples to print.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def preview(recipe: Path, overrides: tuple[str, ...], count: int, as_json: bool) -> None:
    """Print examples as the model will see them. Trained tokens are coloured, and it says what became of all rows.

    The tokens go into the cache that training reads.

    Example: `gym data preview recipe.yaml --count 5`
    """
    loaded = load_recipe(recipe, overrides)
    section = loaded.data
    if not isinstance(section, Data):
        raise RecipeError(
            "this recipe has no data section", where=str(recipe), key="data", fix="add, for example, `data: data.jsonl`"
        )
    shown = section.preview(loaded, count)
    if as_json:
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from gym_data.preview import show

    show(shown)


@data.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def cache(context: click.Context, as_json: bool) -> None:
    """Show what the token cache holds; `prune` and `clear` make room.

    It never holds more than `$GYM_CACHE_SIZE` (default 50GB): what was not used for the longest time goes first. Beside it lie
    tokenizers with tokens that recipes add, which go when none has used them for 30 days.
    """
    if context.invoked_subcommand is not None:
        return
    from gym_data import cache_eviction, new_tokens
    from gym_data.preview import show_cache

    root, most = cache_dir() / "tokens", cache_eviction.limit()
    held = [cache_eviction.described(each) for each in cache_eviction.kept(root)]
    sizes = [each.size for each in cache_eviction.kept(new_tokens.root())]
    beside = {"path": str(new_tokens.root()), "entries": len(sizes), "bytes": sum(sizes)}
    if as_json:
        click.echo(json.dumps({"path": str(root), "most_bytes": most, "entries": held, "tokenizers": beside}, indent=2))
        return
    show_cache(str(root), most, held)
    if sizes:
        click.echo(f"{beside['path']}: {len(sizes)} tokenizers with added tokens, {written(sum(sizes))}")


@cache.command()
@click.option("--to", metavar="SIZE", help="Bytes that may stay, such as 5GB; by default $GYM_CACHE_SIZE.")
def prune(to: str | None) -> None:
    """Remove what was not used for longest.

    What killed runs left goes first, then the least recently used until the rest is small enough.
    """
    from gym_data import cache_eviction

    _make_room(cache_eviction.size_of(to, "--to") if to else cache_eviction.limit())


@cache.command()
def clear() -> None:
    """Remove all; runs make again what they need."""
    _make_room(0)


def _make_room(most: int) -> None:
    from gym_data import cache_eviction, new_tokens, token_cache

    root = cache_dir() / "tokens"
    with token_cache.writing(root):
        token_cache.collect(root)
        gone = cache_eviction.evict(root, most)
        unused = new_tokens.remove_unused()
    size = sum(each.size for each in gone)
    click.echo(f"removed {len(gone)} of the data sets in {root}: {written(size)}")
    if unused:
        click.echo(
            f"removed {len(unused)} tokenizers that none used for 30 days: {written(sum(each.size for each in unused))}"
        )
