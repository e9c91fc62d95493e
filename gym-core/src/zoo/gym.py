"""`from zoo.gym import Trainer`: the names of `gym`, without its modules. Other distributions may put modules into `zoo`."""

from gym import _names, _resolve


def __getattr__(name: str) -> object:
    full = next((each for each in _names() if each.rpartition(".")[2] == name), name)
    return _resolve(*full.rpartition(".")[::2])


def __dir__() -> list[str]:
    return [each.rpartition(".")[2] for each in _names()]
