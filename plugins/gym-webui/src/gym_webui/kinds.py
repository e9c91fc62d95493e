"""The kind `panels`: pages of the web interface. No torch is imported here."""

from __future__ import annotations

from typing import ClassVar

from gym_core.component import Component


class Panel(Component):
    """A page of `gym webui`. `build(site=gym_webui.site.Site)` returns a `gym_webui.site.Page`.

    Its paths are below `/DISTRIBUTION-NAME/`, and every request to them has passed the token, the host and the origin. It runs
    in the process of the server, so it imports no tensor library: what needs one is a process of its own.
    """

    kind: ClassVar[str] = "panels"
    title: ClassVar[str] = ""
    """The word that leads to it."""
