"""The lock under which transformers makes a model."""

from threading import RLock

#: transformers replaces functions of its classes while a model is made. Of two threads that do so at once, the second restores
#: what the first put there, and all later models of the process have untied or empty weights.
TRANSFORMERS_LOCK = RLock()
