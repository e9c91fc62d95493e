"""gym-webui: the web interface. The panels of this package; the code of a panel is imported when the server starts."""

from __future__ import annotations

from typing import ClassVar

from gym_webui.kinds import Panel

__all__ = ["Chat", "Export", "Panel", "Recipe", "Runs"]
__version__ = "0.1.0"


class Recipe(Panel):
    """Writes a recipe by forms, checks it, and starts the run."""

    target: ClassVar[str] = "gym_webui.pages.recipe:build"
    title: ClassVar[str] = "Recipe"


class Runs(Panel):
    """Shows every run below the folder: its state, its curves and its log."""

    target: ClassVar[str] = "gym_webui.pages.runs:build"
    title: ClassVar[str] = "Runs"


class Chat(Panel):
    """Talks to one model, or to two side by side."""

    target: ClassVar[str] = "gym_webui.pages.chat:build"
    title: ClassVar[str] = "Chat"


class Export(Panel):
    """Exports what a run made, for another runtime."""

    target: ClassVar[str] = "gym_webui.pages.export:build"
    title: ClassVar[str] = "Export"
