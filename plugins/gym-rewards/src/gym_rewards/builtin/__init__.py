"""The rewards of this package: what a recipe can say of each. Nothing heavy is imported; the code stands beside."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gym_rewards.reward import Answer, Reward
from gym_rewards.source_check import located

__all__ = [
    "Code",
    "Exact",
    "Http",
    "JsonText",
    "Layout",
    "Length",
    "Math",
    "Overlong",
    "PythonFunction",
    "Regex",
    "ToolCall",
]

Seconds = Annotated[float, Field(gt=0, le=3600)]
Count = Annotated[int, Field(gt=0)]


class Math(Reward):
    r"""1 where the answer's result is that of the row, 0 where it is not; numbers are compared exactly, as fractions.

    The result is the last `\boxed{}`, else what follows the last `####`, else the last "the answer is", else the last number.
    """

    target: ClassVar[str] = "gym_rewards.builtin.math_verifier:MathScore"
    bounded: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (
        Answer("Half of 84 is \\boxed{42}.", {"answer": "84 / 2 = 42\n#### 42"}),
        Answer("Half of 84 is \\boxed{41}.", {"answer": "84 / 2 = 42\n#### 42"}),
    )

    answer: str = "answer"
    """Column of the true result: a number, its text, or a solution that marks it as an answer does; or a list of them."""
    marked: bool = False
    """Whether only a marked result counts: boxed, after `####` or after "the answer is"."""
    latex: bool = False
    """Whether what is no number is compared as mathematics, through math-verify (`pip install gym-rewards[math]`)."""
    timeout: Seconds = 5.0
    """Seconds for math-verify to compare one answer; one that takes longer earns 0."""


class Exact(Reward):
    """1 where the answer is the text of the row, 0 where it is not."""

    target: ClassVar[str] = "gym_rewards.builtin.text_match:ExactScore"
    better: ClassVar[tuple[Answer, Answer] | None] = (
        Answer("paris ", {"answer": "Paris"}),
        Answer("Rome", {"answer": "Paris"}),
    )

    answer: str = "answer"
    """Column of the expected text, or of a list of texts of which any will do."""
    section: str = ""
    """Tag whose content is compared, such as `answer` for `<answer>...</answer>`; without it, all of the answer."""
    case: bool = False
    """Whether capitals count."""
    punctuation: bool = True
    """Whether punctuation counts. Runs of white space never do."""


class Regex(Reward):
    """1 where a pattern is found in the answer, 0 where it is not or where the search takes too long."""

    target: ClassVar[str] = "gym_rewards.builtin.text_match:RegexScore"
    bounded: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (Answer("It is 42."), Answer("No idea."))

    pattern: Annotated[str, Field(examples=[r"\d+"])]
    """Regular expression of Python."""
    full: bool = False
    """Whether all of the answer must match."""
    ignore_case: bool = False
    """Whether capitals are the same as small letters."""
    timeout: Seconds = 1.0
    """Seconds for one answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return pattern


class Code(Reward):
    """1 where the Python program in the answer passes the tests of the row, in a sandbox; 0 where it does not.

    The program is the last fenced block, or the whole answer where there is none. What the sandbox keeps out is written in
    docs/rewards.md. It needs Linux.
    """

    target: ClassVar[str] = "gym_rewards.builtin.code_execution:CodeScore"
    bounded: ClassVar[bool] = True
    keeps_time: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (
        Answer("```python\ndef double(x):\n    return 2 * x\n```", {"tests": ["assert double(4) == 8"]}),
        Answer("```python\ndef double(x):\n    return x ** 2\n```", {"tests": ["assert double(4) == 8"]}),
    )

    tests: str = "tests"
    """Column of the tests: code with assertions, with `check(candidate)` or with `unittest`, `{input, output}` pairs,
    `{inputs: [...], outputs: [...]}` and with `fn_name` calls of a function; or a list of such; or any of these as JSON text."""
    entry_point: str = "entry_point"
    """Column that names the function which `check(candidate)` is called with, where rows have one."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """How far a printed or returned number may be from an expected decimal (0.25, not 25), absolutely or in parts of it."""
    setup: str = "test_setup_code"
    """Column of code that comes before every test that is code, where rows have one."""
    partial: bool = False
    """Whether the share of passed tests is earned rather than all or nothing."""
    timeout: Seconds = 5.0
    """Seconds for one test; less where all answers together would not be done within `reward_timeout`."""
    memory: Annotated[int, Field(ge=64)] = 512
    """MiB of address space for a program."""
    threads: Count = 4
    """Threads that a program may have; other processes it never has."""
    output: Count = 1
    """MiB that a program may print; more fails the test."""
    parallel: Count = 2
    """Answers that are tested at once."""
    isolation: Literal["namespaces", "landlock"] = "namespaces"
    """What confines programs beside the filter of system calls; where it is missing, the run refuses to start.
    `landlock` is weaker: programs see which files there are, and can write none."""


class Layout(Reward):
    """1 where the answer consists of these sections, each once, filled and in this order, with nothing around them; else 0."""

    target: ClassVar[str] = "gym_rewards.builtin.format_and_length:LayoutScore"
    better: ClassVar[tuple[Answer, Answer] | None] = (
        Answer("<think>\n6 * 7 = 42\n</think>\n<answer>42</answer>"),
        Answer("<answer>42</answer> I think."),
    )

    sections: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("think", "answer")
    """Tags, in order: `think` stands for `<think>...</think>`."""
    rest: bool = False
    """Whether untagged text must follow the last section, as it does in `<think>...</think> 42`."""
    opened: bool = False
    """Whether the prompt has opened the first section already, as some chat templates do."""


class Length(Reward):
    """1 for answers of a length between two bounds, in tokens; outside, less by 1 / `slack` with each token, down to 0."""

    target: ClassVar[str] = "gym_rewards.builtin.format_and_length:LengthScore"
    judges_length: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (Answer("brief", tokens=100), Answer("lengthy", tokens=600))

    minimum: Annotated[int, Field(ge=0)] = 0
    """Fewest tokens that earn 1. Equal bounds are a target."""
    maximum: Annotated[int, Field(ge=0)] = 512
    """Most tokens that earn 1."""
    slack: Count = 128
    """Tokens beyond a bound at which nothing is earned."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError("`minimum` is larger than `maximum`")
        return self


class Overlong(Reward):
    """DAPO's soft overlong punishment (equation 13): 0 up to `maximum - buffer` tokens, then falling to -1 at `maximum`."""

    target: ClassVar[str] = "gym_rewards.builtin.format_and_length:OverlongScore"
    judges_length: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (Answer("brief", tokens=100), Answer("endless", tokens=20_000))

    maximum: Count = 20_480
    """Most tokens an answer can have (L_max); set it to the limit of the rollouts."""
    buffer: Count = 4_096
    """Tokens before that over which the punishment grows (L_cache)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.maximum:
            raise ValueError("`buffer` is larger than `maximum`")
        return self


class JsonText(Reward):
    """1 where the answer is JSON, of a schema where one is given; else 0. It may stand in one fenced block."""

    target: ClassVar[str] = "gym_rewards.builtin.structured_output:JsonScore"
    apart: ClassVar[bool] = True  # a schema may hold patterns
    better: ClassVar[tuple[Answer, Answer] | None] = (Answer('{"city": "Paris"}'), Answer("{city: Paris}"))

    json_schema: dict[str, Any] | None = None
    """JSON Schema that it must satisfy; needs jsonschema (`pip install gym-rewards[json]`)."""
    column: str = ""
    """Column of the row that holds a JSON Schema, an object or its JSON text; instead of `json_schema`."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.json_schema is not None and self.column:
            raise ValueError("`json_schema` and `column` exclude each other")
        return self


class ToolCall(Reward):
    """1 where the answer makes the tool calls of the row, in any order, with the same names and arguments; else 0.

    Calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` blocks, as Hermes and Qwen write them, or an answer
    that is nothing but such JSON.
    """

    target: ClassVar[str] = "gym_rewards.builtin.structured_output:ToolCallScore"
    better: ClassVar[tuple[Answer, Answer] | None] = (
        Answer(
            '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>',
            {"tool_calls": [{"name": "get_time", "arguments": {"city": "Rome"}}]},
        ),
        Answer("I do not know.", {"tool_calls": [{"name": "get_time", "arguments": {"city": "Rome"}}]}),
    )

    calls: str = "tool_calls"
    """Column of the expected calls: a list, one call, or the JSON text or `<tool_call>` blocks of them; OpenAI's form too."""
    partial: bool = False
    """Whether a call counts in part: half for the name, half for the share of right arguments; too many calls cost."""


class Http(Reward):
    """What an endpoint of yours says: it gets JSON by POST and returns `{"scores": [...]}`."""

    target: ClassVar[str] = "gym_rewards.builtin.http_endpoint:HttpScore"

    url: Annotated[str, Field(pattern=r"^https?://", examples=["http://127.0.0.1:8000/score"])]
    """Address; redirects are not followed."""
    token: str = ""
    """Name of an environment variable whose value is sent as a bearer token."""
    batch: Count = 64
    """Answers in one request."""
    timeout: Seconds = 30.0
    """Seconds for one request, to the last byte of the reply."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Times a request is sent again after a broken connection, a timeout or status 429, 500, 502, 503 or 504."""
    backoff: Annotated[float, Field(ge=0, le=60)] = 0.5
    """Seconds before the first repetition; twice as long before each further one."""


class PythonFunction(Reward):
    """What a function of yours says. It is called with what its parameters ask for; functions written for TRL work unchanged.

    Parameters: `answers` (`gym_rewards.Answer`), `completions` or `texts`, `prompts`, `messages`, `ids`, `tokens`, `finished`, or
    the name of a column; each a list with an item for each answer. `**kwargs` gets all of them.
    """

    target: ClassVar[str] = "gym_rewards.builtin.python_function:FunctionScore"
    apart: ClassVar[bool] = True
    better: ClassVar[tuple[Answer, Answer] | None] = (Answer("Done.", finished=True), Answer("Do", finished=False))

    function: Annotated[str, Field(pattern=r".:.", examples=["gym_rewards.builtin.python_function:ended"])]
    """`package.module:function`, or `path/to/file.py:function`; a relative path starts at the recipe, or, where that is no
    file, where the command runs."""
    conversational: bool = False
    """Whether `prompts` and `completions` are lists of messages, as TRL passes them for conversational data, and no texts."""
    options: dict[str, Any] = {}
    """Further arguments, by name."""

    @field_validator("function")
    @classmethod
    def _stands(cls, function: str, info: ValidationInfo) -> str:
        folder = (info.context or {}).get("folder")
        return function if folder is None else located(function, folder)
