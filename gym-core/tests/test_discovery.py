"""Discovery: the same answer as importlib.metadata, nothing imported, and broken metadata harms nobody."""

from __future__ import annotations

import sys
from importlib.metadata import distributions, entry_points

import pytest
from stevedore.driver import DriverManager

from gym_core import PluginError, discovery, metadata
from gym_core.loading import find, load, load_component

POINTS = {"gym.algorithms": {"one": "one:One"}}
ONE = "from gym_core import Algorithm\nclass One(Algorithm):\n    '''One.'''\n"


def test_same_answer_as_the_standard_library():
    discovery.installed.cache_clear()
    ours = {
        (f"gym.{entry.kind}", entry.name, entry.value, entry.dist)
        for group in discovery.installed().entries.values()
        for entry in group
    }
    theirs = {
        (point.group, point.name, point.value, metadata.canonical(point.dist.name))
        for group in ours_groups(ours)
        for point in entry_points(group=group)
    }
    assert ours == theirs


def ours_groups(ours):
    """Every group of Gym's that any installed distribution has, as the standard library sees it."""
    theirs = {point.group for dist in distributions() for point in dist.entry_points if point.group.startswith("gym.")}
    assert theirs == {group for group, *_ in ours}
    return theirs


def test_listing_imports_nothing(install):
    install("gym-one", {"one": ONE}, POINTS)
    assert [entry.name for entry in discovery.entries("algorithms")] == ["one"]
    assert "one" not in sys.modules


def test_the_paper_of_a_component_is_a_project_url(install):
    urls = {
        "one paper": "https://arxiv.org/abs/1706.03762",
        "other paper": "https://\x1b[2J",
        "Homepage": "https://example.org",
    }
    install("gym-one", {"one": ONE}, {"gym.algorithms": {"one": "one:One", "other": "one:One"}}, urls=urls)
    papers = {entry.name: entry.paper for entry in discovery.entries("algorithms")}
    assert papers == {"one": "https://arxiv.org/abs/1706.03762", "other": ""}


def test_a_stevedore_host_can_load_our_groups(install):
    install("gym-one", {"one": ONE}, POINTS)
    entry, cls = load_component("algorithms", "one")
    assert DriverManager("gym.algorithms", "one").driver is cls
    assert (entry.dist, entry.version) == ("gym-one", "1.0")


def test_conflict_names_both_sides_and_the_way_out(install):
    install("gym-one", {"one": ONE}, POINTS)
    install("gym-two", {"two": ONE}, {"gym.algorithms": {"one": "two:One"}}, version="2.0")
    with pytest.raises(PluginError, match=r"gym-one 1\.0 and gym-two 2\.0") as caught:
        find("algorithms", "one")
    assert "`gym-one/one` or `gym-two/one`" in str(caught.value)
    assert find("algorithms", "gym-two/one").version == "2.0"


@pytest.mark.parametrize(
    ("text", "requires", "said"),
    [
        ("raise RuntimeError('no luck')", (), "raised RuntimeError: no luck"),
        ("import sys; sys.exit(3)", (), "raised SystemExit"),
        ("import module_that_is_not_there", (), "needs the module `module_that_is_not_there`"),
        ("One = 3", (), "is not a subclass of gym_core.kinds.Algorithm"),
        ("", (), "raised AttributeError"),
        (ONE, ("gym-core>=99",), "it needs gym-core>=99 (0.1.0 is installed)"),
        (ONE, ("gym-core>=0.1; python_version<'3'",), ""),
    ],
)
def test_each_fault_is_told_as_what_it_is(install, text, requires, said):
    install("gym-one", {"one": text}, POINTS, requires=requires)
    if not said:
        assert load_component("algorithms", "one")[1].__name__ == "One"
        return
    with pytest.raises(PluginError) as caught:
        load_component("algorithms", "one")
    assert said in str(caught.value)
    assert "gym-one 1.0" in str(caught.value) and len(str(caught.value).splitlines()) <= 4


MINE = """
from gym_core import Component
class Mine(Component):
    kind = "optimizers"
"""
ONE_OF_MINE = "from kind_of_mine import Mine\nclass One(Mine):\n    'One.'\n"


def test_a_kind_whose_package_is_not_there_says_what_to_install(install):
    install("gym-one", {"kind_of_mine": MINE, "one": ONE_OF_MINE}, {"gym.optimizers": {"one": "one:One"}})
    with pytest.raises(PluginError, match="no installed plugin brings the kind `optimizers`") as caught:
        load_component("optimizers", "one")
    assert "pip install gym-optim" in str(caught.value)


def test_a_kind_stays_where_its_package_is_set_aside(install, tmp_path, monkeypatch):
    points = {"gym.kinds": {"optimizers": "kind_of_mine:Mine"}, "gym.optimizers": {"theirs": "kind_of_mine:Mine"}}
    install("gym-kind", {"kind_of_mine": MINE}, points)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gym.toml").write_text("[plugins]\ngym-kind = false\n")
    install("gym-one", {"one": ONE_OF_MINE}, {"gym.optimizers": {"one": "one:One"}})
    assert load_component("optimizers", "one")[1].__name__ == "One"
    with pytest.raises(PluginError, match="is disabled"):
        find("optimizers", "theirs")


def test_missing_dependency_is_named_for_pip(install):
    install("gym-one", {"one": "import absent_thing"}, POINTS, requires=("absent-thing>=1", "pydantic"))
    with pytest.raises(PluginError, match="pip install 'absent-thing>=1'"):
        load_component("algorithms", "one")


def test_import_that_hangs_is_stopped(install, monkeypatch):
    from gym_core import loading

    monkeypatch.setattr(loading, "IMPORT_SECONDS", 0.2)
    install("gym-one", {"one": "import time; time.sleep(60)"}, POINTS)
    with pytest.raises(PluginError, match=r"did not end within 0\.2 s \(GYM_IMPORT_SECONDS; more where"):
        load(find("algorithms", "one"))
    slow = "import time; time.sleep(0.4); X = 1"
    install("gym-two", {"two": slow}, {"gym.facade": {"X": "two:X"}})
    assert load(find("facade", "X")) == 1, "what is imported with torch may take longer"


def test_garbled_metadata_is_reported_and_the_rest_lives(install):
    site = install("gym-one", {"one": ONE}, POINTS)
    bad = site / "gym_bad-1.0.dist-info"
    bad.mkdir()
    (bad / "entry_points.txt").write_bytes(b"[gym.algorithms]\nx = \xff\xfe\n")
    half = site / "gym_half-1.0.dist-info"
    half.mkdir()
    (half / "entry_points.txt").write_text("[gym.algorithms]\nwhat is this\nok = one:One\n")
    discovery.installed.cache_clear()
    found = discovery.installed()
    assert [(entry.name, entry.dist) for entry in found.entries["algorithms"]] == [
        ("ok", "gym-half"),
        ("one", "gym-one"),
    ]
    assert {problem.where for problem in found.problems} == {
        "gym_bad-1.0.dist-info",
        "gym_half-1.0.dist-info",
        "gym-half",
    }


def test_unknown_name_gets_the_nearest_one(install):
    install("gym-one", {"one": ONE}, POINTS)
    with pytest.raises(PluginError, match="did you mean `one`"):
        find("algorithms", "ones")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpro", "grpo"),
        ("adam", "adamw"),
        ("GRPO", "grpo"),
        ("Early-Stopping", "early_stopping"),
        ("val", "validate"),
        ("x", ""),
    ],
)
def test_the_nearest_name_has_the_same_letters_or_begins_alike(typed, meant):
    known = ["gspo", "badam", "adamw", "grpo", "early_stopping", "validate"]
    assert discovery.nearest(typed, known) == discovery.nearest(typed, known[::-1]) == meant


def test_the_right_name_of_another_distribution_is_told(install):
    install("gym-one", {"one": ONE}, POINTS)
    with pytest.raises(PluginError, match="write `gym-one/one`"):
        find("algorithms", "gym-on/one")


def test_first_distribution_on_the_path_counts(install, tmp_path, monkeypatch):
    site = install("gym-one", {"one": ONE}, POINTS)
    other = tmp_path / "other"
    other.mkdir()
    twin = other / "gym_one-9.0.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Name: gym-one\nVersion: 9.0\n\n")
    (twin / "entry_points.txt").write_text("[gym.algorithms]\none = nine:One\n")
    monkeypatch.setattr(metadata, "search_path", lambda: [str(site), str(other)])
    discovery.installed.cache_clear()
    assert [entry.version for entry in discovery.entries("algorithms")] == ["1.0"]
