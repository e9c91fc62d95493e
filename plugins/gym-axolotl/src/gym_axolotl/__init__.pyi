# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_axolotl.table import Keys as Keys
