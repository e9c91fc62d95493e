"""Operations on a library: what each does in every case, how they are read, and what may not stand in one."""

from __future__ import annotations

import pytest

from gym_core import GymError
from gym_training_free import Experience, ExperienceLibrary
from gym_training_free.experience.leak_guard import leak, markup
from gym_training_free.experience.operations import Limits, Operation, apply, fault, parse
from gym_training_free.experience.retrieval import by_vectors, by_words
from gym_training_free.experience.similarity import similarity

ONE, TWO, THREE = (
    "When a sum is long, add the tens first.",
    "When units differ, convert them all before you compare.",
    "When a proof stalls, try the smallest case.",
)
NEW, OTHER = "When a graph is given, name its axes aloud.", "When time is short, skip what scores little."
ALMOST_ONE = "When a sum is long, add the tens first!"
LIBRARY = ExperienceLibrary(
    tuple(
        Experience(f"E{n}", text, created=1, updated=1, sources=("q",)) for n, text in ((1, ONE), (2, TWO), (4, THREE))
    ),
    5,
)


def op(name, identity=None, content="", sources=("s",)):
    return Operation(operation=name, id=identity, content=content, sources=sources)


WORDY = "word " * 33

#: Operations, the texts that follow by id, and what is said of those that were not applied.
CASES = {
    "add": ([op("ADD", content=NEW)], {5: NEW}, []),
    "add without content": ([op("ADD")], {}, ["has no content"]),
    "add with an id": ([op("ADD", "E1", NEW)], {5: NEW}, []),
    "add what is there": ([op("ADD", content=ONE)], {}, ["E1 says the same"]),
    "add what is almost there": ([op("ADD", content=ALMOST_ONE)], {}, ["E1 says the same"]),
    "add twice the same": ([op("ADD", content=NEW), op("ADD", content=NEW)], {5: NEW}, ["E5 says the same"]),
    "add two": ([op("ADD", content=NEW), op("ADD", content=OTHER)], {5: NEW, 6: OTHER}, []),
    "add a word of any length": ([op("ADD", content="x" * 513)], {}, ["513 letters"]),
    "add too much": ([op("ADD", content=WORDY)], {}, ["33 words"]),
    "add markup": ([op("ADD", content="When <|im_end|> comes, stop.")], {}, ["mark"]),
    "update": ([op("UPDATE", "E2", NEW)], {2: NEW}, []),
    "update without content": ([op("UPDATE", "E2")], {}, ["has no content"]),
    "update of a missing id is an add": ([op("UPDATE", "E9", NEW)], {5: NEW}, []),
    "update without an id is an add": ([op("UPDATE", None, NEW)], {5: NEW}, []),
    "update to what another says": ([op("UPDATE", "E2", ONE)], {}, ["E1 says the same"]),
    "update to what it says": ([op("UPDATE", "E1", ALMOST_ONE)], {1: ALMOST_ONE}, []),
    "update twice": ([op("UPDATE", "E1", NEW), op("UPDATE", "E1", OTHER)], {1: NEW}, ["earlier UPDATE"]),
    "update of a missing id twice": ([op("UPDATE", "E9", NEW), op("UPDATE", "E9", OTHER)], {5: NEW, 6: OTHER}, []),
    "delete": ([op("DELETE", "E1")], {1: None}, []),
    "delete with content": ([op("DELETE", "E1", "it misleads")], {1: None}, []),
    "delete of a missing id": ([op("DELETE", "E3")], {}, ["no experience of this id"]),
    "delete without an id": ([op("DELETE")], {}, ["names no id"]),
    "delete twice": ([op("DELETE", "E1"), op("DELETE", "E1")], {1: None}, ["deleted already"]),
    "delete wins over update, whatever comes first": (
        [op("UPDATE", "E1", NEW), op("DELETE", "E1")],
        {1: None},
        ["DELETE of this id wins"],
    ),
    "delete makes room for the same text": ([op("ADD", content=ONE), op("DELETE", "E1")], {1: None, 5: ONE}, []),
    "update makes room for the same text": ([op("ADD", content=ONE), op("UPDATE", "E1", NEW)], {1: NEW, 5: ONE}, []),
    "none": ([op("NONE"), op("NONE", "E1", NEW)], {}, []),
    "a leak": ([op("ADD", content="When asked, say 1234.")], {}, ["gives the answer away"]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_operation_does_what_it_says(case):
    operations, expected, refused = CASES[case]
    made, changes = apply(
        LIBRARY, operations, 7, Limits(), lambda one: "it gives the answer away" if "1234" in one.content else ""
    )
    texts = {1: ONE, 2: TWO, 4: THREE} | expected
    assert {int(one.id[1:]): one.text for one in made} == {n: text for n, text in texts.items() if text is not None}
    found = [change.why for change in changes if not change.applied]
    assert len(found) == len(refused) and all(part in why for part, why in zip(refused, found, strict=True))
    assert len(changes) == sum(one.operation != "NONE" for one in operations)
    changed = {one.id for one in made if one.updated == 7}
    assert changed == {f"E{n}" for n, text in expected.items() if text is not None}
    assert made.next_id == max([5, *(n + 1 for n in texts)])  # an id is never given twice


def test_lineage_is_kept():
    made, _ = apply(LIBRARY, [op("UPDATE", "E1", NEW, ("t",)), op("ADD", content=TWO, sources=("u",))], 7, Limits())
    assert (made["E1"].created, made["E1"].updated, made["E1"].sources) == (1, 7, ("q", "t"))
    assert made["E2"].sources == ("q", "u") and made["E2"].updated == 1
    gone, _ = apply(made, [op("DELETE", "E4")], 8, Limits())
    again, _ = apply(gone, [op("ADD", content=THREE)], 9, Limits())
    assert [one.id for one in again] == ["E1", "E2", "E5"]


def test_tags_are_kept_until_there_are_others():
    told = '[{"operation": "UPDATE", "id": "E1", "content": "When x, y.", "tags": ["sums"]}, '
    made, _ = apply(
        LIBRARY, parse(told + '{"operation": "ADD", "content": "When a, b.", "tags": ["letters"]}]'), 7, Limits()
    )
    assert (made["E1"].tags, made["E2"].tags, made["E5"].tags) == (("sums",), (), ("letters",))
    again, _ = apply(made, [op("UPDATE", "E1", OTHER)], 8, Limits())
    assert again["E1"].tags == ("sums",)
    with pytest.raises(ValueError, match="tags"):
        parse('[{"operation": "ADD", "content": "When a, b.", "tags": "all of them"}]')


def test_room_is_made_by_what_gained_least():
    library = LIBRARY.with_uplift({"E1": 0.2, "E2": -0.1})
    made, changes = apply(library, [op("ADD", content=NEW)], 7, Limits(experiences=3))
    assert [one.id for one in made] == ["E1", "E4", "E5"] and changes[-1].id == "E2"
    made, _ = apply(made, [op("ADD", content=OTHER)], 8, Limits(experiences=3))
    assert [one.id for one in made] == ["E1", "E5", "E6"]  # nobody measured E4 and E5: the older one goes
    small, _ = apply(library, [op("ADD", content=NEW)], 7, Limits(tokens=30))
    assert [one.id for one in small] == ["E1", "E5"]


ADDS = "[" + ", ".join(['{"operation": "ADD", "content": "b"}'] * 120) + "]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"operation": "ADD", "content": "a"}]', [op("ADD", content="a", sources=())]),
        ('Here:\n```json\n[{"operation": "add", "content": " a\\n b "}]\n```', [op("ADD", content="a b", sources=())]),
        ('{"operations": [{"operation": "MODIFY", "id": 3, "content": "a"}]}', [op("UPDATE", "E3", "a", ())]),
        ('[{"operation": "DELETE", "id": "[E5]", "content": null, "reason": "x"}]', [op("DELETE", "E5", "", ())]),
        (
            '[{"operation": "DELETE", "id": "e12"}, {"operation": "DELETE", "id": "first"}]',
            [op("DELETE", "E12", "", ()), op("DELETE", "first", "", ())],
        ),
        ('[{"operation": "KEEP", "id": ""}]', [op("NONE", sources=())]),
        ('I see [E1]. [{"operation": "ADD", "content": "a", "sources": ["z"]}]', [op("ADD", content="a", sources=())]),
        ("[]", []),
        (
            f'A draft: {ADDS}, then []. Now it is\n[{{"operation": "DELETE", "id": "E1"}}]\nnot {{"operation": "NONE"}}.',
            [op("DELETE", "E1", "", ())],
        ),
    ],
)
def test_operations_are_read(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "[1, 2]",
        '[{"operation": "BURN"}]',
        '[{"content": "a"}]',
        '[{"operation": "ADD"',
        "[" * 50_000,
        '[{"a":' * 20_000,
    ],
)
def test_what_is_no_list_of_operations_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


def test_faults_are_named_for_whoever_mends_them():
    assert fault(op("ADD", content=WORDY), Limits()) == "it has 33 words, and 32 are the most"
    assert not fault(op("ADD", content=NEW), Limits()) and not fault(op("DELETE", "E1"), Limits())


@pytest.mark.parametrize(
    ("text", "answer", "leaks"),
    [
        ("When summing, expect 42.", "42", True),
        ("When summing, expect 42.", "84 / 2 = 42\n#### 42", True),
        ("When summing, expect 1,042.", "42", False),
        ("When summing, expect 142.", "42", False),
        ("Say PARIS first.", ["Paris", "Lutetia"], True),
        ("When in doubt, x = 3/4 is usual.", r"so \boxed{\frac{3}{4}} or \boxed{x = 3/4}", True),
        ("When nothing is known, say so.", None, False),
        ("When nothing is known, say so.", "", False),
        ("When two trains leave at noon from towns far apart, draw.", "7", False),
        ("Two trains leave at noon from towns sixty kilometres apart.", "7", True),
        ("Two trains leave at noon from towns sixty metres apart.", "7", False),
    ],
)
def test_answers_and_questions_are_found_in_lessons(text, answer, leaks):
    question = "Two trains leave at noon from towns sixty kilometres apart. When do they meet?"
    assert bool(leak(text, question, answer)) == leaks


def test_marks_of_chat_templates_are_found():
    assert all(map(markup, ["<|im_start|>system", "a </s> b", "[INST] do", "[[end 1]]", "a\u0007b", "a\u202eb"]))
    assert not any(map(markup, [ONE, "When a < b, swap them.", "When x[0] is empty, stop."]))


def test_likeness_is_that_of_trigrams():
    assert similarity(ONE, ONE) == similarity("", "") == 1 and similarity(ONE, ALMOST_ONE) == 1
    assert similarity("abc", "xyz") == 0
    assert similarity("ab", "abc") == pytest.approx(1 / 4)  # " ab", "ab " and " ab", "abc", "bc "


def test_what_fits_a_question_is_retrieved():
    assert by_words(LIBRARY, "Compare the units of two long pipes", 1) == ["E2"]
    assert by_words(LIBRARY, "How long is this sum?", 2)[0] == "E1"
    assert by_words(LIBRARY.with_uplift({"E4": 1.0}), "xyzzy", 1) == ["E4"]
    assert by_vectors(LIBRARY, [[1, 0], [0, 1], [1, 1]], [2, 1.9], 2) == ["E4", "E1"]


def test_a_library_comes_back_from_json_and_yaml():
    import yaml

    assert ExperienceLibrary.from_json(LIBRARY.to_json()) == LIBRARY
    assert ExperienceLibrary.from_json(yaml.safe_load(LIBRARY.to_yaml())) == LIBRARY
    with pytest.raises(GymError, match="is no library"):
        ExperienceLibrary.from_json({"experiences": []})
