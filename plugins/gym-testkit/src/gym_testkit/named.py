"""A check of laws of several kinds: that files name the component that made them."""

from __future__ import annotations

from importlib.metadata import version

from gym_core.loading import load_component
from gym_data.provenance import called, identity
from gym_testkit.distribution import Brought


def names_its_maker(brought: Brought) -> None:
    """A cache key tells a component from every other: by its package and version, its class, its code and every option."""
    entry, _ = load_component(brought.kind, brought.name)
    sample = brought.sample()
    told = identity(sample)
    owners = [owner for maker in told["makers"] for owner in maker["distributions"]]
    assert [entry.dist, version(entry.dist)] in owners, f"{entry.dist} is not among {owners}"
    assert all(maker["code"] for maker in told["makers"]), "its code cannot be read"
    for name in brought.cls.model_fields:
        assert identity(sample.model_copy(update={name: "something else"})) != told, f"`{name}` may change unseen"
    assert f"`{brought.name}` of {entry.dist} {entry.version}" in called(sample), called(sample)
