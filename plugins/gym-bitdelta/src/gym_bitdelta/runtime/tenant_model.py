"""One model that answers for many: each row of a batch with the delta of its own tenant."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gym_bitdelta.delta import file
from gym_bitdelta.runtime.attaching import attach, find_rows, probe_rows
from gym_bitdelta.runtime.layers import Layer
from gym_bitdelta.runtime.products import products
from gym_bitdelta.runtime.row_tenants import Mixture, active, computing
from gym_bitdelta.runtime.tenant import Tenant, prepare
from gym_bitdelta.runtime.tenant_cache import Tiers
from gym_bitdelta.runtime.weight_uses import hand_over, uses_of
from gym_core import GymError
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Completion

#: Keys of a configuration that decide nothing of what a forward pass gives.
NO_MATTER = re.compile(r"_token_id$|dropout|_pdrop$|_coef$|initializer_range$|^max_position_embeddings$")
_log = logging.getLogger(__name__)
PACKED, PREPARED = 2**30, 2**29  #: bytes of the two tiers by default


def _check_rows(model: PreTrainedModel, given: tuple[Any, ...], more: dict[str, Any]) -> None:
    """Raise GymError where a batch has other rows than the tenants that were named."""
    mixture, found = active(), next((each for each in [*given, *more.values()] if isinstance(each, Tensor)), None)
    if mixture is not None and found is not None and len(found) != mixture.size:
        raise GymError(
            f"a batch of {len(found)} rows is computed for {mixture.size} tenants",
            key="tenants",
            fix="name a tenant for each row of the batch",
        )


@dataclass(frozen=True)
class Lease:
    """Tenants that stay in memory while they are in use. Batches of them may follow each other in any mix."""

    model: TenantModel
    tenants: dict[str, Tenant]

    def serving(self, rows: Sequence[str | None]) -> AbstractContextManager[None]:
        """Return a context in which row i of a batch is computed for `rows[i]`; None is the base."""
        return computing(self.model.mixture([None if name is None else self.tenants[name] for name in rows]))


class TenantModel:
    """A base with the compressed deltas of its tenants: see `serving`, which is all that a forward pass needs.

    Several threads may serve at once, each its own batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        locate: Callable[[str], Path],
        fingerprint: str | None = None,
        packed_bytes: int = PACKED,
        prepared_bytes: int = PREPARED,
        kernel: str | None = None,
    ) -> None:
        """Prepare a model to serve tenants; without one it computes what it did before.

        Args:
            model: a causal language model, also one whose weights are quantized. Its parameters are not touched.
            locate: returns the file of a tenant's delta, or the folder with it.
            fingerprint: of the base (`gym_torch.checkpoints.base_fingerprint`); by default that of the files it was loaded from.
            packed_bytes: most memory for deltas as they lie in their files.
            prepared_bytes: most memory for deltas laid out for products, those in use included.
            kernel: `avx512`, `avx2`, `c`, `torch` or `triton`; by default the fastest that runs here.

        """
        self.model = model
        self.products = products(kernel, model.device)
        self._locate = locate
        self._fingerprint = fingerprint or base_fingerprint(Path(model.name_or_path))
        self._layers = attach(model)
        hand_over(model, self._layers, uses_of(model, probe_rows(model)))
        find_rows(model, self._layers)
        self._shapes = {name: shape for layer in self._layers for name, shape in layer.shapes().items()}
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        self._vocabulary = {name for layer in self._layers if layer.module in ends for name in layer.names["weight"]}
        self._hooks = [
            each.register_forward_pre_hook(_check_rows, with_kwargs=True) for each in {model, model.base_model}
        ]
        self._told: set[Layer] = set()  # of which it was said that they compute for one tenant at a time
        self._last: tuple[tuple[int, ...], Mixture] | None = None
        self.tiers = Tiers(self._read, self._prepare, packed_bytes, prepared_bytes)

    @contextmanager
    def lease(self, names: Collection[str | None]) -> Iterator[Lease]:
        """Keep tenants in memory while the block runs; waits for those that must be read. None is the base.

        Raises GymError where a delta is damaged, belongs to another base or does not fit the model, or where all do not fit in.
        """
        wanted = [name for name in names if name is not None]
        tenants = self.tiers.pin(wanted)
        try:
            yield Lease(self, tenants)
        finally:
            self._last = None
            self.tiers.unpin(tenants)

    @contextmanager
    def serving(self, rows: Sequence[str | None]) -> Iterator[None]:
        """Compute row i of each batch in the block for the tenant `rows[i]`, or for the base where that is None.

        Within it the model may be called, generate, or be trained on by nobody: there are no gradients.
        """
        with self.lease(rows) as lease, lease.serving(rows):
            yield

    def warm(self, name: str) -> Future[Tenant]:
        """Have a tenant read in the background. Nobody is disturbed."""
        return self.tiers.fetch(name)

    def forget(self, name: str) -> None:
        """Let go of a tenant whose file changed or was removed; batches that have it go on with it."""
        self.tiers.forget(name)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tenants: Sequence[str | None],
        max_new_tokens: int | Sequence[int],
        generator: Generator | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Continue each prompt for its tenant; rows of all tenants share batches, but for those that `Tenant.apart` is said of.

        Args:
            prompts: token ids, at least one each.
            tenants: one for each prompt; None is the base.
            max_new_tokens: see `gym_torch.generation.generator.Generator.generate`.
            generator: of this very model; by default a new one, for which `stop_ids` must be among the options.
            options: the others of `Generator.generate`.

        """
        if len(tenants) != len(prompts):
            raise GymError(f"{len(tenants)} tenants for {len(prompts)} prompts", where="TenantModel.generate")
        generator = generator or Generator(self.model, None)
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        streams = options.pop("streams", None) or range(len(prompts))
        found: dict[int, Completion] = {}
        with self.lease(tenants) as lease:
            batches: dict[str | None, list[int]] = {}
            for at, name in enumerate(tenants):
                apart = name is not None and lease.tenants[name].apart
                batches.setdefault(name if apart else None, []).append(at)
            for places in batches.values():
                given, most, numbers, keys = (
                    [each[at] for at in places] for each in (prompts, limits, streams, tenants)
                )
                made = generator.generate(given, most, streams=numbers, keys=keys, around=lease.serving, **options)
                found |= zip(places, made, strict=True)
        return [found[at] for at in range(len(prompts))]

    def mixture(self, rows: Sequence[Tenant | None]) -> Mixture:
        """Return rows with their tenants, the last one again where nothing changed."""
        key = tuple(map(id, rows))
        last = self._last
        if last is None or last[0] != key:
            self._last = last = key, Mixture(self.products, rows)
        return last[1]

    def close(self) -> None:
        """Give the model back as it was."""
        self.tiers.close()
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            layer.remove()
        self._layers.clear()

    def _read(self, name: str) -> file.Delta:
        path = self._locate(name)
        path = path / file.NAME if path.is_dir() else path
        delta = file.read(path)
        delta.check_base(self._fingerprint, str(self.model.name_or_path))
        if other := sorted(key for key in delta.header.changed if not NO_MATTER.search(key)):
            raise GymError(
                f"the fine-tune computes otherwise than its base: {', '.join(other)}",
                where=str(path),
                fix="serve it by itself: rows of one batch share what is no weight",
            )
        delta.check_size(sum(map(prod, self._shapes.values())))
        for weight, record in delta.records.items():
            shape, own = tuple(record.entry.shape), self._shapes.get(weight)
            if own is None and not record.entry.counts():  # it changes nothing
                continue
            if own is None or (own != shape and not (weight in self._vocabulary and own[1:] == shape[1:])):
                raise GymError(
                    f"the delta changes {weight} of shape {list(shape)}; in the model it "
                    + ("is not there" if own is None else f"is of shape {list(own)}"),
                    where=str(path),
                    fix="load the model that it was made from, in the way it was loaded then",
                )
        return delta

    def _prepare(self, delta: file.Delta, pause: Callable[[], None]) -> Tenant:
        tenant = prepare(delta, self.products, pause)
        outputs = {name: shape[0] for name, shape in tenant.shapes.items() if shape != self._shapes.get(name, shape)}
        found = replace(tenant, arena=tenant.arena.to(self.model.device), outputs=outputs)
        apart = next((each for each in self._layers if not each.together and each.changed_by(found)), None)
        if apart is None:
            return found
        if apart not in self._told:
            self._told.add(apart)
            kind = type(apart.module).__name__
            _log.warning(
                "%s (%s) computes for one tenant at a time: those who changed it share no batch", apart.place, kind
            )
        return replace(found, apart=apart.place)
