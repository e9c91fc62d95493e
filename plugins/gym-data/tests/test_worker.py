"""Chat templates run in a process that can be killed: nothing they do takes much time or memory of anybody else."""

import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from data_cases import MARKED, chat

from gym_core import GymError
from gym_data.chat import render, template_worker
from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest
from gym_data.chat.template_pool import WorkerPool
from gym_data.chat.template_worker import MEMORY, Worker

WORKER = Worker()

HOSTILE = {
    "a join of six gigabytes": "{{ range(100000) | join('a' * 60000) }}",
    "indentation of nested lists": (
        "{% set n = namespace(x=range(3000) | list) %}{% for i in range(300) %}{% set n.x = [n.x] %}{% endfor %}"
        "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson(indent=100) }}"
    ),
    "long work in one call": "{{ range(100000) | map('center', 99999) | map('title') | map('title') | map('length') | sum }}",
    "lists that keep growing": (
        "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}"
    ),
}


def spec(template):
    return ChatTemplateSpec({"default": template}, {}, ["<|im_end|>"], [], [], ["<|im_end|>"])


def asked(question):
    return RenderRequest(chat(question, "yo"), (), [1])


def children_peak():
    """Bytes of the largest child that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_takes_neither_time_nor_memory_and_harms_no_other_row(name, monkeypatch):
    monkeypatch.setattr(render, "SECONDS", 0.3)
    only_there = "{% if messages[0].content == 'x' %}" + HOSTILE[name] + "{% endif %}"
    begun = time.monotonic()
    found = WORKER.learnable(spec(only_there + MARKED), [asked("a"), asked("x"), asked("b")])
    assert time.monotonic() - begun < 20
    assert isinstance(found[1], ValueError) and "the chat template" in str(found[1])
    assert [each.sequences[0].text.count("yo<|im_end|>") for each in (found[0], found[2])] == [1, 1]
    WORKER.end()
    assert children_peak() < MEMORY


def test_a_process_that_others_end_is_started_again():
    before = WORKER.chat(spec(MARKED), asked("a")).sequences
    os.kill(WORKER.process.pid, signal.SIGTERM)
    assert WORKER.chat(spec(MARKED), asked("a")).sequences == before


def test_a_question_that_was_broken_off_leaves_no_answer_to_the_next():
    """Ctrl-C in a notebook: the answer to the old question is not taken for that to the new one."""

    def interrupt(*_):
        raise KeyboardInterrupt

    slow = "{% if messages[0].content == 'x' %}{% for i in range(99999) if i < 0 %}{% endfor %}" * 3 + "{% endif %}" * 3
    expected = WORKER.chat(spec(slow + MARKED), asked("a")).sequences
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(KeyboardInterrupt):
            while True:
                WORKER.chat(spec(slow + MARKED), asked("x"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert WORKER.chat(spec(slow + MARKED), asked("a")).sequences == expected


def test_many_long_rows_pass_without_waiting_for_each_other():
    long = [asked("a" * 100_000) for _ in range(40)]
    assert len(WORKER.learnable(spec(MARKED), long)) == 40


def test_what_an_answer_may_raise_reaches_the_row_it_belongs_to():
    refusing = "{% if messages[0].content == 'x' %}{{ raise_exception('not this') }}{% endif %}"
    found = WORKER.learnable(spec(refusing + MARKED), [asked("a"), asked("x")])
    assert str(found[1]) == "the chat template refused it: not this" and found[0].sequences
    with pytest.raises(ValueError, match="refused it"):
        WORKER.control(spec("{% broken"))


@pytest.mark.parametrize("command", ["/bin/false", "/no/such/python"])
def test_a_process_that_cannot_start_is_no_fault_of_a_row(command, monkeypatch):
    """Under limits of the system, `bad_rows: skip` would leave out row after row."""
    monkeypatch.setattr(template_worker, "COMMAND", (command,))
    with pytest.raises(GymError, match=r"cannot be started[\s\S]*ulimit"):
        Worker().learnable(spec(MARKED), [asked("a"), asked("b")])


def test_a_row_that_nobody_thought_of_ends_no_process():
    odd = asked("a")
    deep = None
    for _ in range(700):
        deep = [deep]
    odd.messages[1]["reasoning_content"], odd.messages[0]["name"] = 5, deep
    WORKER.chat(spec(MARKED), asked("a"))
    process = WORKER.process
    found = WORKER.learnable(spec(MARKED), [asked("a"), odd, asked("b")])
    assert "rendering it raised" in str(found[1]) and found[0].sequences and found[2].sequences
    assert WORKER.process is process


def test_as_many_processes_are_started_as_are_asked_at_once_and_one_stays():
    workers, asking = WorkerPool(), Barrier(3)

    def ask(question):
        asking.wait()
        return own.learnable(spec(MARKED), [asked(question * 10_000)] * 20)[0].sequences[0].text

    with workers.at_work() as own, ThreadPoolExecutor(3) as threads:
        said = list(threads.map(ask, "abc"))
        started = list(own.idle)
    assert [text.count(letter * 10_000) for text, letter in zip(said, "abc", strict=True)] == [1, 1, 1]
    assert 1 < len(started) <= 3 and len(workers.idle) == 1
    assert [worker.process is None for worker in started].count(False) == 1
    workers.idle[0].end()


def test_a_process_that_renders_imports_no_numpy():
    """Every process that trains starts one: without numpy it begins in less than half the time."""
    asked = "import sys, gym_data.chat.template_worker; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
