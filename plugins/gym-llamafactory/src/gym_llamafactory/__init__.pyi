# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_llamafactory.table import Choice as Choice
from gym_llamafactory.table import Key as Key
from gym_llamafactory.table import Keys as Keys
