"""Compares an artifact with its source, in the process that is started for it: weights, tokens, answers and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import GymError
from gym_export.format import Format, Loaded, greedy
from gym_export.source import CONTINUED, Prompt, Source


def compared(format: Format, source: Source, path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much the artifact in a folder is off, for the certificate.

    Raises GymError where its weights, its tokens, its answers or its text are not those of the source.
    """
    figures: dict[str, Any] = dict(format.weights(source, path, told))
    prompts = source.prompts  # first, for the runtime may read the chat template, and set it no bounds
    loaded = format.load(source, path)
    if loaded is None:
        return figures
    for prompt in prompts:
        _same_tokens(loaded, prompt, path)
    return figures | _answers(format, loaded, source, path)


def _same_tokens(loaded: Loaded, prompt: Prompt, path: Path) -> None:
    found = loaded.encode(prompt) if prompt.text else None
    if found is None or tuple(found) == prompt.tokens:
        return
    place = next((at for at, pair in enumerate(zip(found, prompt.tokens, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(found), len(prompt.tokens)) if place is None else place
    what = "chat template" if prompt.messages else "tokenizer"
    raise GymError(
        f"its {what} makes other tokens of the {prompt.name}, from the {at + 1}. of {len(prompt.tokens)} on",
        where=str(path),
        fix="see that tokenizer and chat template beside the model are those that it was trained with",
    )


def _answers(format: Format, loaded: Loaded, source: Source, path: Path) -> dict[str, Any]:
    """Ask both sides the same."""
    bound, largest, apart, size = format.bound(source), 0.0, 0.0, 0.0
    asked = {prompt.name: source.asked(prompt) for prompt in source.prompts}
    if source.task.scores:
        asked = {"probe": asked["probe"]}
    for tokens in asked.values():
        wanted, found = source.logits(tokens), loaded.logits(tokens)
        if wanted.shape != found.shape:
            raise GymError(f"it answers {list(found.shape)} numbers, not {list(wanted.shape)}", where=str(path))
        difference = found.astype(np.float64) - wanted
        largest = max(largest, float(np.abs(difference).max()))
        apart, size = apart + float((difference**2).sum()), size + float((wanted.astype(np.float64) ** 2).sum())
    relative = (apart / size) ** 0.5 if apart else 0.0
    words = source.task.compared
    if not relative <= bound:
        raise GymError(
            f"the exported model disagrees with the artifact: its {words} are {relative:.2g} off (relative), not {bound:.2g}",
            where=str(path),
            fix="export in a higher precision; if that disagrees too, report it",
        )
    figures = {
        "prompts": {name: len(tokens) for name, tokens in asked.items()},
        "compared": words,
        "bound": bound,
        "max_difference": largest,
        "relative_difference": relative,
    }
    if source.task.scores:
        return figures
    texts = [tokens for name, tokens in asked.items() if name != "probe"] or list(asked.values())
    return figures | {"greedy": _greedy(loaded, source, texts, largest, path)}


def _greedy(loaded: Loaded, source: Source, texts: list[tuple[int, ...]], largest: float, path: Path) -> dict[str, int]:
    """Have both sides write on; return of how many tokens how many are the same.

    They may differ where the source's likeliest tokens are as near to each other as the logits are off, or GymError is raised.
    """
    same = 0
    for tokens in texts:
        wanted = greedy(source.logits, tokens, CONTINUED)
        found = loaded.greedy(tokens, CONTINUED)
        agreeing = next((at for at in range(CONTINUED) if found[at] != wanted[at]), CONTINUED)
        same += agreeing
        if agreeing < CONTINUED:
            last = source.logits([*tokens, *wanted[:agreeing]])[-1]
            gap = float(last[wanted[agreeing]] - last[found[agreeing]])
            if gap > 2 * largest:
                why = f"it writes another text than the artifact, from token {agreeing + 1} on ({gap:.2g} less likely in logits)"
                raise GymError(
                    why, where=str(path), fix="report it: logits agree, so its cache or its text is at fault"
                )
    return {"tokens": CONTINUED * len(texts), "same": same}
