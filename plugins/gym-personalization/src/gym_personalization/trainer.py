"""`PersonalizedTrainer`: creates, updates and serves a variant of one base for every user.

trainer = PersonalizedTrainer("Qwen/Qwen3-4B", output="variants")
trainer.create_variant("user_123", rows)
trainer.serve_variant("user_123", "What do I like for breakfast?")
trainer.serve_variants([("user_123", "And for lunch?"), ("user_456", "What do I like?")])  # in one batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from gym_bitdelta.store.content import hashed
from gym_core import DataError, GymError, Quantizer, Recipe, RecipeError, load_recipe
from gym_core.outputlock import OutputLock
from gym_personalization.base import AloneError
from gym_personalization.opened_variants import Prompt
from gym_personalization.serving import Request, Served, ServingEngine
from gym_personalization.training_engine import Engine
from gym_personalization.user_recipe import named, recipe_of, section_of
from gym_personalization.user_scheduler import Trained, Waiting, train_all, train_alone
from gym_personalization.users import first_row, is_pair, rows_of, users_in
from gym_personalization.variants import Variant, Variants, disk_errors
from gym_torch.checkpoints.base_fingerprint import check_base
from gym_torch.checkpoints.base_model import base_of
from gym_torch.console import say

Data = str | Path | Iterable[Mapping[str, Any]]
Told = Callable[[Engine], None]  #: called after each step
Done = Callable[[str, Variant | GymError], None]  #: called for each user who is finished


class PersonalizedTrainer:
    """Keeps one base and a small variant for each user."""

    def __init__(
        self,
        base_model: str | Mapping[str, Any],
        config: Quantizer | Mapping[str, Any] | str | None = "bitdelta",
        *,
        output: str | Path = "variants",
        recipe: Mapping[str, Any] | None = None,
        users_at_once: int = 64,
        tokens_at_once: int | None = None,
    ) -> None:
        """Take what all variants share; nothing is loaded yet.

        Args:
            base_model: a family, a folder or a Hub id; or the section `model` of a recipe.
            config: the quantizer that compresses each variant, such as `BitDeltaConfig(bits=1)`; with None what was trained is
                the variant, and variants are not answered in one batch.
            output: folder of all variants, which is the store that `gym variants` looks at.
            recipe: further sections of a recipe, such as `adapter`, `algorithm` or `train`; what users bring takes the place of
                `data.sources`. Without an `algorithm` a user's rows say whether it is `sft` or `dpo`.
            users_at_once: most users in training at a time; memory grows with them.
            tokens_at_once: most tokens in one pass through the model; by default what suits the device.

        Raises GymError where the variants of `output` belong to another base.

        """
        self.recipe = {**(recipe or {}), "model": base_model}
        if config is not None:
            self.recipe["quantization"] = section_of(config)
        self.variants = Variants(Path(output))
        self.variants.check_same_base(base_model)
        self._room, self._tokens = users_at_once, tokens_at_once
        self._engine: Engine | None = None
        self._serving: ServingEngine | None = None

    def __enter__(self) -> Self:
        """Use it in a block, at whose end it is closed."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the models, and of what is open in the store."""
        self.close()

    def close(self) -> None:
        """Answer what was asked, then let go of the models and of what is open in the store."""
        if self._serving is not None:
            self._serving.close()
        self._serving = self._engine = None
        self.variants.close()

    def create_variant(
        self, user_id: str, data: Data | None = None, *, preferences: Data | None = None, **train: Any
    ) -> Variant:
        """Train a variant on a user's rows, or on pairs of the preference format, and return it; one that is there is returned.

        `train` are keys of that section for this user alone, such as `seed` or `max_steps`. Raises GymError for a name, rows or a
        recipe that will not do, and BusyError where the user has a variant of other rows.
        """
        with self._alone():
            return self._one(self._next(user_id, _given(data, preferences), train))

    def update_variant(
        self, user_id: str, data: Data | None = None, *, preferences: Data | None = None, **train: Any
    ) -> Variant:
        """Go on with a user's variant on new rows, and return what it becomes; the one before stays until then."""
        with self._alone():
            before = self.variants.served(user_id)
            return self._one(self._next(user_id, _given(data, preferences), train, before))

    def create_variants(
        self,
        users: Mapping[str, Data] | str | Path,
        told: Told | None = None,
        turn: int | None = None,
        done: Done = lambda user, made: None,
        update: bool = False,
        **train: Any,
    ) -> dict[str, Variant | GymError]:
        """Train the variants of many users together; return each, or why there is none. What failed disturbs no other.

        Args:
            users: rows by user, or a folder with a file for each, called after the user: `alice.jsonl`.
            told: called with the engine after each step.
            turn: optimizer steps after which a user makes room for one who waits; by default when it has finished.
            done: called with each user and its variant, or why there is none, as soon as that is known.
            update: whether who has a variant goes on from it, as `update_variant` does; one that learnt these rows last stays.
            train: keys of the section `train` for all of them.

        """
        given = users_in(Path(users)) if isinstance(users, str | Path) else users
        found: dict[str, Variant | GymError] = {}
        waiting: list[Waiting] = []
        with self._alone():
            for user, data in given.items():
                try:
                    before = self.variants.newest(user) if update else None
                    if before is not None and self.variants.learnt(before, rows_of(user, data)):
                        found[user] = before
                        done(user, before)
                    else:
                        waiting.append(self._next(user, data, train, before))
                except GymError as error:
                    found[user] = error
                    done(user, error)
            for user, made in self._train(waiting, told, turn):
                found[user] = made
                done(user, made)
        return {user: found[user] for user in given}

    def remove_variant(self, user_id: str) -> None:
        """Remove all that there is of a user: variant, versions and rows. Raises RecipeError where that is nothing."""
        with self._alone():
            self.variants.remove(user_id)

    def serve_variant(self, user_id: str, prompt: Prompt | None = None, **options: Any) -> Any:
        """Return the answer of a user's variant to a prompt; without one, an object with `generate(prompt, ...)`.

        `options` are those of `gym_personalization.serving.Request`: `max_new_tokens`, `temperature` and `seed`. Raises GymError
        where the user has no variant, or its file is damaged.
        """
        if prompt is None:
            self.variants.store.get(user_id)
            return Served(self.serving(), user_id)
        return self.serving().submit(user_id, prompt, **options).result()

    def serve_variants(self, asked: Sequence[tuple[str, Prompt]], **options: Any) -> list[str | GymError]:
        """Return the answer to each (user, prompt), or why there is none; all users share batches over one base."""
        return self.serving().answers([Request(user, prompt, **options) for user, prompt in asked])

    def serving(self) -> ServingEngine:
        """Return what answers, for servers that take requests of many users at the same time."""
        if self._serving is None:
            self._serving = ServingEngine(self.variants.store)
        return self._serving

    def engine(self, recipe: Recipe) -> Engine:
        """Return the engine of all users, with the base loaded by the first call."""
        if self._engine is None:
            self._engine = Engine(recipe, self.variants.output, self._room, self._tokens)
        return self._engine

    def _alone(self) -> OutputLock:
        """Return a context in which no other process writes down what a user learns from, or trains."""
        return OutputLock(self.variants.output)

    def _one(self, waiting: Waiting) -> Variant:
        ((_, found),) = self._train([waiting])
        if isinstance(found, GymError):
            raise found
        return found

    def _train(
        self, waiting: list[Waiting], told: Told | None = None, turn: int | None = None
    ) -> Iterator[tuple[str, Variant | GymError]]:
        """Train users, the base loaded for the first who needs it, and put what each becomes into the store."""
        if not waiting:
            return
        for each in self._trained(waiting, told or (lambda engine: None), turn):
            try:
                yield each.name, self._published(each)
            except GymError as error:
                yield each.name, error

    def _trained(self, waiting: list[Waiting], told: Told, turn: int | None) -> Iterator[Trained]:
        if self._engine is None:
            try:
                self.engine(_of_all(waiting[0].recipe()))
            except AloneError as why:
                say(f"users train one after another: {why.problems[0].why}")
                return map(train_alone, waiting)
        assert self._engine is not None
        return train_all(self._engine, waiting, turn, told)

    def _published(self, trained: Trained) -> Variant:
        if trained.artifact is None:
            assert trained.error is not None
            raise trained.error
        with disk_errors(trained.output):
            return self.variants.publish(trained.name, int(trained.output.name))

    def _next(self, user: str, data: Data, train: Mapping[str, Any], before: Variant | None = None) -> Waiting:
        """Return a user who is to be trained, from the version `before` on. Raises what is wrong with the name or the rows."""
        folder, version = self.variants.folder(user), 1 if before is None else before.version + 1
        if before is not None:
            check_base(before.trained, base_of(before.trained))
        with disk_errors(folder):
            rows = rows_of(user, data)
            path = rows if isinstance(rows, Path) else self.variants.keep_rows(user, version, rows)
        run = None if before is None else before.output
        raw = recipe_of(self.recipe, path, is_pair(first_row(rows)), train, folder / str(version), run)
        if before is not None:
            if before.trained.kind != "adapter":
                raise RecipeError(
                    "a whole model is not gone on with: what changes then belongs to the version before, not to the base",
                    key="adapter",
                    fix="set `adapter: lora`, or create the variant from all rows under another name",
                )
            raw["adapter"] = {**named(raw["adapter"]), "adapter_name_or_path": str(before.trained.path.resolve())}
        return Waiting(
            user,
            folder / str(version),
            partial(load_recipe, raw),
            lambda: self.variants.learns_from(user, version, hashed(path)),  # the file may have changed by then
        )


def _of_all(recipe: Recipe) -> Recipe:
    """Return the recipe of a user without the adapter that it goes on with: what is wrong with that stops no other."""
    raw = recipe.canonical()
    if raw.get("adapter"):
        raw["adapter"] = {key: value for key, value in raw["adapter"].items() if key != "adapter_name_or_path"}
    return load_recipe(raw)


def _given(data: Data | None, preferences: Data | None) -> Data:
    if (data is None) == (preferences is None):
        raise RecipeError("give either `data` or `preferences`", key="data")
    if preferences is None:
        assert data is not None
        return data
    if isinstance(preferences, str | Path):
        found = [first_row(Path(preferences))] if Path(preferences).is_file() else []
    else:
        preferences = found = list(preferences)
    odd = next((row for row in found if isinstance(row, Mapping) and not is_pair(row)), None)
    if odd is not None:
        raise DataError(
            f"a row of `preferences` has the columns {', '.join(map(str, odd))[:60]}, and is no pair of two answers",
            key="preferences",
            fix="give rows with `chosen` and `rejected`, or hand other rows over as `data`",
        )
    return preferences
