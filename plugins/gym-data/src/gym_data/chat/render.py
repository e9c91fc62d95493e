"""Rendering chat templates, which are foreign code: in a sandbox, with bounds on time and size.

What these bounds do not see (a filter that works for minutes, the memory of a finished text) ends the process in which
`gym_data.chat.template_worker` has templates rendered.

The environment is the one transformers documents for chat templates, so that both render the same text.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime
from functools import cached_property, wraps
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gym_data.chat.template_namespace import TemplateNamespace
from gym_data.chat.template_reads import values_asked

SECONDS = 5.0  #: longest rendering of one conversation
ALARM = False  #: whether this process may be ended when that is over, see `gym_data.chat.template_worker`
GRACE = 0.5  #: seconds after which it is, if the template has not noticed by itself
CHARACTERS = 64_000_000  #: longest text a template may make, finished or on the way
WIDTH = 100_000  #: largest number a padding or repeating function may be given
DAY = "gym_day"  #: value that says for which day a template is rendered, such as `2025-12-31`; without it, for now
HANDED = {"messages", "tools", "documents", "add_generation_prompt"}  #: what every template is told
GENERATION_START, GENERATION_END = "\ufdd4", "\ufdd5"
"""Noncharacters of Unicode around what `{% generation %}` holds; `SpecialTokenQuoter` keeps them out of contents."""

_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))
_WIDE_FILTERS = ("batch", "center", "format", "indent", "slice", "truncate", "wordwrap")
_WIDE_FORMAT = re.compile(r"\d{6}|\{[^{}]*\{")


class RenderLimitError(jinja2.TemplateError):
    """A template that takes too long or makes too much."""


class Generation(jinja2.ext.Extension):
    """The `{% generation %}` tag: marks what the assistant wrote."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Wrap the body in the two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{GENERATION_START}{caller()}{GENERATION_END}"


class Bounds(NodeTransformer):
    """Adds a check to every loop turn, joining `~` and filter of a template."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - the name is jinja's
        """Look at the clock in every turn."""
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_environment_call("tick", [])))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 - the name is jinja's
        """Join under the limit."""
        self.generic_visit(node)
        return _environment_call("joined", node.nodes)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Expr:  # noqa: N802 - the name is jinja's
        """Measure what a filter returns; the filter of a block has no expression to measure."""
        inner: nodes.Expr | None = node
        while isinstance(inner, nodes.Filter):
            inner = inner.node
        if inner is None:
            return node
        self.generic_visit(node)
        return _environment_call("measured", [node])


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja without access to Python, time or memory beyond the bounds above."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        """Set up what chat templates may use."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        self.globals.update(raise_exception=_raise, strftime_now=_now, namespace=TemplateNamespace)
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters["replace"] = self._replace
        for name in _WIDE_FILTERS:
            self.filters[name] = _narrow(self.filters[name])

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Bounds().visit(source), *args, **kwargs)

    def tick(self) -> str:
        """Raise RenderLimitError once the time is over."""
        if time.monotonic() > _deadline.get():
            raise RenderLimitError(f"the chat template did not end within {SECONDS:g} s")
        return ""

    def measured(self, value: Any) -> Any:
        """Return a value unless it is too long."""
        if isinstance(value, str | bytes | list | tuple) and len(value) > CHARACTERS:
            raise RenderLimitError(f"the chat template made a text of more than {CHARACTERS} characters")
        return value

    def joined(self, *values: Any) -> str:
        """Join values as `~` does."""
        return str(self.measured("".join(map(str, values))))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result would be huge."""
        self.tick()
        if operator == "*":
            sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
            _small(sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 0, CHARACTERS)
        elif operator == "**":
            _small(right * (left.bit_length() if isinstance(left, int) else 1), WIDTH)
        elif operator == "%" and isinstance(left, str):
            _small(WIDTH if _WIDE_FORMAT.search(left) else 0, WIDTH - 1)
        return self.measured(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function unless its arguments ask for a huge result."""
        __self.tick()
        owner = __obj.__self__ if isinstance(__obj, BuiltinMethodType) else None
        if isinstance(owner, str):
            for value in args:
                _small(value if isinstance(value, int) else 0, WIDTH)
            lengths = [len(value) for value in args if isinstance(value, str)]
            _small(len(owner) * max(lengths, default=0) if __obj.__name__ == "replace" else 0, CHARACTERS)
        return __self.measured(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse `str.format` with a wide field or a computed width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(value.__self__):
            raise RenderLimitError("the chat template formats into a field that is too wide")
        return wrapped

    def _replace(self, text: str, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        _small(len(text) * len(new), CHARACTERS * 16)
        return text.replace(old, new, -1 if count is None else count)


class ChatTemplate:
    """A chat template, compiled once."""

    def __init__(self, text: str) -> None:
        """Hold the text. Compiling waits until something is rendered, as models without chats need none."""
        self.text = text

    @cached_property
    def marks_generation(self) -> bool:
        """Whether the template says itself what the assistant wrote."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.text) is not None

    @cached_property
    def literals(self) -> str:
        """All text that the template itself can write, joined by NUL."""
        with _limited():
            tree = Sandbox().parse(self.text)
            found = {node.data for node in tree.find_all(nodes.TemplateData)}
            found |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return "\0".join(sorted(found))

    @cached_property
    def reads(self) -> set[str]:
        """Names of the values that the template asks for, beside those that every one is handed."""
        with _limited():
            return values_asked(Sandbox().parse(self.text)) - HANDED

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return Sandbox().from_string(self.text)

    def check(self) -> None:
        """Raise ValueError where the text is no template."""
        with _limited():
            _ = self._compiled

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        generation_prompt: bool,
        values: Mapping[str, Any],
    ) -> str:
        """Return the text of a conversation, with the two marks around generation blocks.

        `values` are what the template is handed besides; where they name a `DAY`, that is its date. Raises ValueError when the
        template refuses the messages, fails, or exceeds its bounds.
        """
        if DAY in values:
            values = {**values, "strftime_now": _clock(date.fromisoformat(values[DAY]))}
        with _limited():
            parts, size = [], 0
            for part in self._compiled.generate(
                messages=messages,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **values,
            ):
                size += len(part)
                _small(size, CHARACTERS)
                parts.append(part)
            return "".join(parts)


@contextmanager
def _limited() -> Iterator[None]:
    """Bound the time of what a template does, and turn whatever it raises into a ValueError, memory used up excepted.

    Under `ALARM` the process ends where it takes much longer, as a running C function looks at no clock.
    """
    token = _deadline.set(time.monotonic() + SECONDS)
    if ALARM:
        signal.setitimer(signal.ITIMER_REAL, SECONDS + GRACE)
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a template is foreign code: it can raise whatever Python can
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the chat template refused it: {reason[:200]}") from error
    finally:
        if ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        _deadline.reset(token)


def _environment_call(name: str, arguments: list[nodes.Expr]) -> nodes.Expr:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _small(number: Any, limit: int) -> None:
    if isinstance(number, int) and number > limit:
        raise RenderLimitError(f"the chat template asked for {number} characters or repetitions, more than {limit}")


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _small(value, WIDTH)
            _small(WIDTH if function.__name__ == "do_format" and _WIDE_FORMAT.search(str(value)) else 0, WIDTH - 1)
        return function(*args, **kwargs)

    return checked


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(day: date) -> Callable[[str], str]:
    """Return a `strftime_now` for which it is the beginning of this day, so that the same texts come out all day long."""
    return datetime.combine(day, datetime.min.time()).strftime


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _small(indent, 100)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
