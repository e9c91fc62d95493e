"""Plain data as YAML that the kernel reads back as it was."""

from __future__ import annotations

from typing import Any

import yaml

from gym_core.yamlfile import RESOLVERS


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump_yaml(data: Any) -> str:
    """Write plain data so that reading it gives the same back: `no` stays bare, the text `1e-5` is quoted."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
