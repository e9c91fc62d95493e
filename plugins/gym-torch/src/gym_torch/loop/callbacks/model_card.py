"""The model card: what was trained from what, on what, how far, and what nobody has measured."""

from __future__ import annotations

from typing import Any

import yaml

from gym_core import Artifact, Run
from gym_data.location import called, is_hub_id
from gym_torch.observer import Observer, Progress


class ModelCard(Observer):
    """Writes `README.md` beside the run and into the artifact."""

    def __init__(self, run: Run, base: str, data: dict[str, Any]) -> None:
        """Describe a run that starts from `base` and learns from what `data` reports."""
        self.run, self.base, self.data = run, base, data

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Write the card."""
        text = self._text(progress, artifact)
        for directory in (self.run.output, artifact.path):
            (directory / "README.md").write_text(text, encoding="utf-8")

    def _text(self, progress: Progress, artifact: Artifact) -> str:
        canonical = self.run.recipe.canonical()
        method = next(item.name for item in self.run.recipe.resolved if item.path == ("algorithm",))
        head: dict[str, Any] = {
            "library_name": "peft" if artifact.kind == "adapter" else "transformers",
            "tags": ["gym", method],
        }
        if is_hub_id(self.base):  # a family or a folder of this machine means nothing to others
            head["base_model"] = self.base
        rows = [("steps", progress.step), ("epochs", round(progress.epoch, 3)), ("tokens", progress.tokens)]
        if artifact.details.get("step", progress.step) != progress.step:
            rows.append(("weights of step", artifact.details["step"]))
        rows += [(name, round(value, 4)) for name, value in progress.figures_of(artifact).items()]
        figures = "\n".join(f"| {name} | {value} |" for name, value in rows)
        recipe = yaml.safe_dump({key: canonical[key] for key in canonical if key != "output"}, sort_keys=False)
        return CARD.format(
            head=yaml.safe_dump(head, sort_keys=False).strip(),
            name=called(self.base),
            method=method,
            article="An" if artifact.kind[:1] in "aeiou" else "A",
            kind=artifact.kind,
            figures=figures,
            samples=self.data["samples"],
            fingerprint=self.data["fingerprint"],
            recipe=recipe.strip(),
        )


CARD = """\
---
{head}
---

# {name}, trained with {method}

{article} {kind} made by Gym. It was trained on {samples} (data fingerprint `{fingerprint}`).

| | |
|---|---|
{figures}

Not evaluated: these figures say how training went, on its own terms, not how good or how safe the answers are.

## Recipe

```yaml
{recipe}
```
"""
