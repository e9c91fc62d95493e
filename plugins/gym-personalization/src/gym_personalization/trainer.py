"""`PersonalizedTrainer`: creates, updates and serves a variant of one base for every user.

trainer = PersonalizedTrainer("Qwen/Qwen3-4B", output="variants")
trainer.create_variant("user_123", rows)
trainer.serve_variant("user_123", "What do I like for breakfast?")
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gym_core import GymError, Quantizer, Recipe, RecipeError, load_recipe
from gym_core.discovery import entries
from gym_core.loading import load
from gym_core.outputlock import OutputLock
from gym_personalization.engine import Engine
from gym_personalization.roster import Trained, Waiting, train_all
from gym_personalization.serving import Served, open_variant
from gym_personalization.users import first_row, is_pair, rows_of, users_in
from gym_personalization.variants import Variant, Variants

Data = str | Path | Iterable[Mapping[str, Any]]
#: What the recipes of users say where nobody says otherwise: a few rows, seen a few times.
DEFAULTS: dict[str, Any] = {
    "adapter": "lora",
    "train": {"epochs": 3, "batch_size": 4, "learning_rate": 2e-4, "save_every": 50},
}
OPENED = 4  #: variants that are kept open for answers


class PersonalizedTrainer:
    """Keeps one base and a small variant for each user."""

    def __init__(
        self,
        base_model: str | Mapping[str, Any],
        config: Quantizer | Mapping[str, Any] | str | None = None,
        *,
        output: str | Path = "variants",
        recipe: Mapping[str, Any] | None = None,
        users_at_once: int = 64,
        tokens_at_once: int | None = None,
    ) -> None:
        """Take what all variants share; nothing is loaded yet.

        Args:
            base_model: a family, a folder or a Hub id; or the section `model` of a recipe.
            config: the quantizer that compresses each variant, such as `BitDeltaConfig(bits=1)` or `"bitdelta"`; by default the
                adapter is the variant.
            output: folder of all variants.
            recipe: further sections of a recipe, such as `adapter`, `algorithm` or `train`, and `data` without `sources`. Without
                an `algorithm` a user's rows say whether it is `sft` or `dpo`.
            users_at_once: most users in training at a time; memory grows with them.
            tokens_at_once: most tokens in one pass through the model; by default what suits the device.

        """
        self.recipe = {**DEFAULTS, **(recipe or {}), "model": base_model}
        self.recipe["train"] = dict(self.recipe["train"] or {})
        if config is not None:
            self.recipe["quantization"] = _section(config)
        self.variants = Variants(Path(output))
        self._room, self._tokens = users_at_once, tokens_at_once
        self._engine: Engine | None = None
        self._opened: OrderedDict[tuple[str, int], Served] = OrderedDict()

    def create_variant(
        self, user_id: str, data: Data | None = None, *, preferences: Data | None = None, **train: Any
    ) -> Variant:
        """Train a variant on a user's rows, or on pairs of the preference format, and return it; one that is there is returned.

        `train` are keys of that section for this user alone, such as `seed` or `max_steps`. Raises GymError for a name, rows or a
        recipe that will not do, and BusyError where the user has a variant of other rows.
        """
        return self._one(user_id, _given(data, preferences), 1, train)

    def update_variant(
        self, user_id: str, data: Data | None = None, *, preferences: Data | None = None, **train: Any
    ) -> Variant:
        """Go on with a user's variant on new rows, and return what it becomes; the one before stays until then."""
        before = self.variants.served(user_id)
        return self._one(user_id, _given(data, preferences), before.version + 1, train, before)

    def create_variants(
        self, users: Mapping[str, Data] | str | Path, told: Any = None, turn: int | None = None, **train: Any
    ) -> dict[str, Variant | GymError]:
        """Train the variants of many users together; return each, or why there is none. What failed disturbs no other.

        Args:
            users: rows by user, or a folder with a file for each, called after the user: `alice.jsonl`.
            told: called with the engine after each step.
            turn: optimizer steps after which a user makes room for one who waits; by default when it has finished.
            train: keys of the section `train` for all of them.

        """
        given = users_in(Path(users)) if isinstance(users, str | Path) else users
        found: dict[str, Variant | GymError] = {}
        waiting: list[Waiting] = []
        for user, data in given.items():
            try:
                waiting.append(self._waiting(user, data, 1, train))
            except GymError as error:
                found[user] = error
        for each in self._train(waiting, told, turn):
            found[each.name] = self._made(each)
        return {user: found[user] for user in given}

    def serve_variant(self, user_id: str, prompt: str | None = None, **options: Any) -> Any:
        """Return the answer of a user's variant to a prompt; without one, an object with `generate(prompt, ...)`.

        `options` are those of `Served.generate`. Raises RecipeError where the user has no variant.
        """
        variant = self.variants.served(user_id)
        key = user_id, variant.version
        if key not in self._opened:
            self._opened[key] = open_variant(variant)
            while len(self._opened) > OPENED:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        served = self._opened[key]
        return served if prompt is None else served.generate(prompt, **options)

    def engine(self, recipe: Recipe) -> Engine:
        """Return the engine of all users, with the base loaded by the first call."""
        if self._engine is None:
            self._engine = Engine(recipe, self.variants.output, self._room, self._tokens)
        return self._engine

    def _one(
        self, user: str, data: Data, version: int, train: Mapping[str, Any], before: Variant | None = None
    ) -> Variant:
        waiting = self._waiting(user, data, version, train, before)
        (found,) = [self._made(each) for each in self._train([waiting])]
        if isinstance(found, GymError):
            raise found
        return found

    def _made(self, trained: Trained) -> Variant | GymError:
        if trained.artifact is None:
            assert trained.error is not None
            return trained.error
        return self.variants.served(trained.name)

    def _train(self, waiting: list[Waiting], told: Any = None, turn: int | None = None) -> list[Trained]:
        """Train them, the base loaded for the first who needs it."""
        if not waiting:
            return []
        with OutputLock(self.variants.output):
            if self._engine is None:
                self.engine(waiting[0].recipe())
            assert self._engine is not None
            return list(train_all(self._engine, waiting, turn, told or (lambda engine: None)))

    def _waiting(
        self, user: str, data: Data, version: int, train: Mapping[str, Any], before: Variant | None = None
    ) -> Waiting:
        """Return a user who is to be trained. Raises what is wrong with the name or the rows."""
        folder = self.variants.folder(user)
        rows = rows_of(user, data)
        path = rows if isinstance(rows, Path) else self.variants.keep_rows(user, version, rows)
        raw = self._raw(path, is_pair(first_row(rows)), train, folder / str(version))
        if before is not None:
            raw["adapter"] = {**_named(raw["adapter"]), "adapter_name_or_path": str(before.trained.path.resolve())}
        return Waiting(user, folder / str(version), partial(load_recipe, raw))

    def _raw(self, path: Path, pairs: bool, train: Mapping[str, Any], output: Path) -> dict[str, Any]:
        """Return the recipe of one user."""
        raw = dict(self.recipe)
        data = raw.get("data") or {}
        if not isinstance(data, Mapping):
            raise RecipeError("each user has a source of its own", key="data", fix="leave `sources` out")
        raw["data"] = {"processes": 1, **data, "sources": [str(path)]}
        raw.setdefault("algorithm", "dpo" if pairs else "sft")
        raw["train"] = {**raw["train"], **train}
        return {**raw, "output": str(output)}


def _given(data: Data | None, preferences: Data | None) -> Data:
    if (data is None) == (preferences is None):
        raise RecipeError("give either `data` or `preferences`", key="data")
    return preferences if data is None else data  # type: ignore[return-value]


def _named(section: Any) -> dict[str, Any]:
    return dict(section) if isinstance(section, Mapping) else {"name": section}


def _section(config: Quantizer | Mapping[str, Any] | str) -> Any:
    """Return a quantizer as a recipe says it."""
    if not isinstance(config, Quantizer):
        return config
    names = [entry.qualified for entry in entries("quantizers") if load(entry) is type(config)]
    if not names:
        raise RecipeError(f"{type(config).__name__} is no quantizer that is installed", key="quantization")
    return {"name": names[0], **config.model_dump(exclude_unset=True)}
