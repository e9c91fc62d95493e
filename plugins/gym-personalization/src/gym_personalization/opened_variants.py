"""The variants of a store in memory: deltas of one base beside it, and whatever else there is as a model of its own."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from gym_bitdelta.runtime.tenant import Tenant
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_bitdelta.store import Variant, VariantStore
from gym_core import Artifact, BusyError, GymError
from gym_data.tokenizer import Tokenizer
from gym_torch.checkpoints.base_fingerprint import check_base
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.checkpoints.tokenizer_files import BESIDE, copy_tokenizer
from gym_torch.kernels.precision_probe import device
from gym_torch.model import mapped_weights
from gym_torch.model.stop_tokens import stops

Prompt = str | Sequence[Mapping[str, Any]]
ALONE = 4  #: models that are kept open, of variants that cannot share one
TOKENIZERS = 16  #: different tokenizers that are kept open
TRIES = 5  #: how often a version may be replaced between being looked up and being read
Found = TypeVar("Found")
ID = 64  #: characters of the name of a version


class _ReplacedError(GymError):
    """Another version took the place of the one that was to be read."""


@dataclass(frozen=True, eq=False)
class Alone:
    """A model of its own in memory."""

    model: PreTrainedModel
    files: ExitStack  #: keeps them in the store


@dataclass(frozen=True)
class Ready:
    """All that answers a prompt."""

    name: str  #: of the version, among those of all users
    home: TenantModel | Alone  #: holds the model in memory: what is kept of it goes with this
    tokenizer: Tokenizer
    stops: frozenset[int]
    tenant: Tenant | None  #: the delta; None: the model is the variant

    @property
    def model(self) -> PreTrainedModel:
        """What computes."""
        return self.home.model

    @property
    def alone(self) -> str | None:
        """Its name, where no other rows may be in its batches; else None."""
        return self.name if self.tenant is not None and self.tenant.apart else None

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt. Raises GymError where it cannot be laid out."""
        try:
            return self.tokenizer.chat(messages_of(prompt), None, generation_prompt=True)[0].tolist()
        except ValueError as error:
            fix = 'give a text, or messages: [{"role": "user", "content": "..."}]'
            raise GymError(f"the prompt cannot be laid out: {error}", key="prompt", fix=fix) from None


class OpenedVariants:
    """Opens the newest version of each user. Any thread may ask."""

    def __init__(
        self,
        store: VariantStore,
        dtype: torch.dtype | str,
        packed_bytes: int,
        prepared_bytes: int,
        kernel: str | None,
        base: PreTrainedModel | None = None,
    ) -> None:
        """Take a store, and the base where it is in memory already; else it is loaded when a delta is first asked for.

        A base that is given has its layers prepared for deltas at once: later another thread may be computing with it.
        """
        self._store, self._dtype = store, dtype
        self._options: dict[str, Any] = {
            "packed_bytes": packed_bytes,
            "prepared_bytes": prepared_bytes,
            "kernel": kernel,
        }
        self._shared = None if base is None else self._prepared(base)
        self._newest: dict[str, str] = {}  # what a user's delta is called in memory
        self._alone: OrderedDict[str, Alone] = OrderedDict()
        self._tokenizers: OrderedDict[tuple[Any, ...], Tokenizer] = OrderedDict()
        self._reading = ExitStack()  # the files that are read at the moment
        self._turn = threading.RLock()
        self._opening = threading.Lock()  # of models of their own: who has a delta waits for none of them

    @property
    def shared(self) -> TenantModel:
        """The base that all deltas lie beside."""
        assert self._shared is not None, "no delta was asked for"
        return self._shared

    def ready(self, user: str, stack: ExitStack) -> Ready:
        """Return what answers the prompts of a user; the delta stays in memory until `stack` is closed.

        Raises GymError where there is no variant, it is damaged or belongs to another base; and
        `gym_bitdelta.runtime.tenant_cache.NoRoomError` where those in use leave no memory for it.
        """
        return self._of_newest(user, lambda found: self._ready(found, stack))

    def tokenizer(self, user: str) -> Tokenizer:
        """Return the tokenizer of a user, with the chat template of that variant. Raises GymError where there is no variant."""
        return self._of_newest(user, self._tokenizer)

    def warm(self, user: str) -> None:
        """Have a delta read in the background. Raises GymError where the user has no variant."""
        found = self._store.get(user)
        if _is_delta(found):
            base, name = self._base(_artifact(found)), found.id + found.user
            self._let_go_of_others(found.user, name)
            base.warm(name)

    def close(self) -> None:
        """Let go of everything."""
        with self._turn:
            if self._shared is not None:
                self._shared.close()
            self._reading.close()
        with self._opening:
            for alone in self._alone.values():
                alone.files.close()
            self._alone.clear()

    def _of_newest(self, user: str, read: Callable[[Variant], Found]) -> Found:
        for _ in range(TRIES):
            found = self._store.get(user)
            try:
                return read(found)
            except _ReplacedError:
                continue
        raise BusyError(f"the variant of `{user}` is replaced all the time", key="user_id", fix="try again")

    def _ready(self, found: Variant, stack: ExitStack) -> Ready:
        home: TenantModel | Alone
        held, name = None, found.id + found.user
        if found.artifact["task"] != "causal-lm":
            raise GymError(
                f"the variant of `{found.user}` is a model for `{found.artifact['task']}`, which answers nothing",
                key="user_id",
                fix="train users with an algorithm for text, such as `sft` or `dpo`",
            )
        if _is_delta(found):
            home = base = self._base(_artifact(found))
            self._let_go_of_others(found.user, name)
            held = stack.enter_context(base.lease([name])).tenants[name]
        else:
            home = self._opened(found)
        tokenizer = self._tokenizer(found)
        ends = {tokenizer.eos_id, *tokenizer.turn_ends, *stops(home.model)} - {None}
        return Ready(name, home, tokenizer, frozenset(end for end in ends if end is not None), held)

    def _base(self, artifact: Artifact) -> TenantModel:
        with self._turn:
            if self._shared is None:
                self._shared = self._prepared(mapped_weights.load(base_of(artifact), dtype=self._dtype))
            return self._shared

    def _prepared(self, base: PreTrainedModel) -> TenantModel:
        base.requires_grad_(False)
        return TenantModel(base.to(device()), self._locate, **self._options)  # type: ignore[arg-type]

    def _let_go_of_others(self, user: str, name: str) -> None:
        """Let go of the delta that a user had before the one of this name."""
        with self._turn:
            before = self._newest.get(user, name)
            if before != name:
                self.shared.forget(before)
            self._newest[user] = name

    def _locate(self, name: str) -> Path:
        """Return the folder with a delta, which stays until the next one is located: a single thread reads, one after another."""
        self._reading.close()
        found = self._reading.enter_context(self._store.open(name[ID:]))
        if found.variant.id != name[:ID]:
            raise _ReplacedError("another version was stored meanwhile")
        return found.path

    def _opened(self, found: Variant) -> Alone:
        """Return the model of a variant that is no delta, or one of another configuration than the base has."""
        with self._opening:
            if found.id not in self._alone:
                with ExitStack() as stack:
                    opened = stack.enter_context(self._store.open(found.user))
                    if opened.variant.id != found.id:
                        raise _ReplacedError("another version was stored meanwhile")
                    if found.artifact["kind"] != "model":
                        check_base(opened.artifact, base_of(opened.artifact))
                    model = open_artifact(opened.artifact, self._dtype).model.requires_grad_(False).eval()
                    self._alone[found.id] = Alone(model.to(device()), stack.pop_all())  # type: ignore[arg-type]
                while len(self._alone) > ALONE:
                    self._alone.popitem(last=False)[1].files.close()
            self._alone.move_to_end(found.id)
            return self._alone[found.id]

    def _tokenizer(self, found: Variant) -> Tokenizer:
        """Return the tokenizer of a variant: the files of its base, with those that the variant has of its own."""
        own = [file for file in found.files if any(fnmatch(file.name, pattern) for pattern in BESIDE)]
        base = base_of(_artifact(found)) if found.artifact["kind"] != "model" else None
        key = str(base), *sorted((file.name, file.sha256) for file in own)
        with self._turn:
            if key not in self._tokenizers:
                with self._store.open(found.user) as opened:
                    if opened.variant.id != found.id:
                        raise _ReplacedError("another version was stored meanwhile")
                    self._tokenizers[key] = _tokenizer_of(base, [opened.path / file.name for file in own])
                if len(self._tokenizers) > TOKENIZERS:
                    self._tokenizers.popitem(last=False)
            self._tokenizers.move_to_end(key)
            return self._tokenizers[key]


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as messages. Raises GymError where it is neither text nor messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Sequence) and prompt and all(isinstance(each, Mapping) for each in prompt):
        return [dict(each) for each in prompt if isinstance(each, Mapping)]
    raise GymError(
        f"{prompt!r:.60} is no prompt",
        key="prompt",
        fix='give a text, or messages: [{"role": "user", "content": "..."}]',
    )


def _artifact(found: Variant) -> Artifact:
    return found.artifact_at(Path())


def _is_delta(found: Variant) -> bool:
    """Whether a variant can lie beside the base: one that changes the configuration as well is another model."""
    return found.artifact["kind"] == "delta" and not found.artifact["details"].get("config")


def _tokenizer_of(base: Path | None, own: Sequence[Path]) -> Tokenizer:
    """Return a tokenizer whose files, those of a base with others in their place, stay for as long as it is there."""
    folder = Path(tempfile.mkdtemp(prefix="gym-tokenizer-"))
    try:
        if base is not None:
            copy_tokenizer(base, folder)
        for file in own:
            shutil.copyfile(file, folder / file.name)
        made = Tokenizer(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made
