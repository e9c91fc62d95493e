"""`python -m gym_core.cli` is `gym`."""

from gym_core.cli import main

main()
