"""The recipe of a thousand users, with four: created together, verified, and answered from one base."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gym_bitdelta.variants_commands import variants
from gym_personalization.commands import personalize
from gym_testkit.caches import own_cache

COUNT = 4
RECIPES = Path(__file__).parents[3] / "recipes/users"


def test_four_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    import thousand

    def command(name: str, *words: object) -> tuple[Any, float]:
        done = CliRunner().invoke(
            {"personalize": personalize, "variants": variants}[name], [*map(str, words), "--json"]
        )
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout), 0.0

    monkeypatch.setattr(thousand, "gym", command)
    done = CliRunner().invoke(thousand.main, [str(tmp_path / "people"), "--count", str(COUNT), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["users"] == told["sound"] == COUNT and not told["failed"]
    assert told["answers"]["questions"] == 4 * COUNT and told["answers"]["right"] >= 0.8 * 4 * COUNT
    sizes = told["bytes_per_user"]
    assert sizes["delta"] < 6_000 and sizes["delta"] * 7 < sizes["adapter"], sizes
    sys.modules.pop("thousand"), sys.modules.pop("people")
