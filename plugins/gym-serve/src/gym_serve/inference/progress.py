"""How far the answering of rows is, shown on the terminal."""

from __future__ import annotations

import sys
import time

import click


class Progress:
    """Shows how far it is: a line that changes on a terminal, one now and then elsewhere."""

    def __init__(self, total: int, done: int) -> None:
        """Begin with rows that are done."""
        self._total, self._done, self._new, self._tokens = total, done, 0, 0
        self._began = self._said = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def began(self) -> None:
        """Count the time from now on: what the model takes to be loaded says nothing of the rows that are left."""
        self._began = self._said = time.monotonic()

    def told(self, rows: int, tokens: int) -> None:
        """Take note of answers."""
        self._done, self._new, self._tokens = self._done + rows, self._new + rows, self._tokens + tokens
        now = time.monotonic()
        if now - self._said > (0.1 if self._terminal else 10.0):
            self._said = now
            self._show(now)

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and self._new:
            self._show(time.monotonic())
            click.echo("", err=True)

    def _show(self, now: float) -> None:
        seconds = max(now - self._began, 1e-9)
        left = (self._total - self._done) * seconds / self._new if self._new else 0.0
        text = f"{self._done:,} of {self._total:,} rows, {self._tokens / seconds:,.0f} tokens/s, {left:,.0f} s left"
        click.echo(f"\r\x1b[2K{text}" if self._terminal else text, nl=not self._terminal, err=True)
