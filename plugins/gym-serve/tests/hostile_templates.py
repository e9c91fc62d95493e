"""Chat templates that mean no good; `SIGN` stands for a file that one of them would make."""

from __future__ import annotations

HOSTILE = {
    "reaches for Python": "{{ cycler.__init__.__globals__.os.system('touch SIGN') }}{{ lipsum.__globals__ }}",
    "never ends": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "fills the memory": "{% set s = namespace(t='x' * 1000000) %}{% for a in range(99) %}{% set s.t = s.t ~ s.t %}{% endfor %}",
    "is folded while it is compiled": "{{ 'x' * 10 ** 11 }}",
}
