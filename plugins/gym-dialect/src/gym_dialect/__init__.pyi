# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_dialect.placing import Dialect as Dialect
from gym_dialect.placing import place as place
from gym_dialect.placing import take_apart as take_apart
from gym_dialect.stated import Stated as Stated
from gym_dialect.table import Choice as Choice
from gym_dialect.table import Key as Key
from gym_dialect.table import Keys as Keys
