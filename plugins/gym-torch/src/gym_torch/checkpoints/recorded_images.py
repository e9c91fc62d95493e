"""How images were read when a model was trained, in the details of its artifact: whoever asks it reads them alike."""

from __future__ import annotations

from typing import Any

from gym_core import Artifact
from gym_core.discovery import entries
from gym_core.loading import load
from gym_data.kinds import Images
from gym_torch.quantization.loading import maker_of


def told_of(images: Images | None) -> dict[str, Any]:
    """Return the details of an artifact that name what read images; empty where nothing did."""
    if images is None:
        return {}
    value = next(entry.value for entry in entries("images") if load(entry) is type(images))
    return {"images": value, "images_options": images.model_dump(mode="json")}


def images_of(artifact: Artifact) -> Images | None:
    """Return what read images. Raises PluginError where its package is not installed."""
    made = artifact.details.get("images")
    if made is None:
        return None
    images: Images = maker_of(artifact, "images", made, "images were read")(
        **artifact.details.get("images_options", {})
    )
    return images
