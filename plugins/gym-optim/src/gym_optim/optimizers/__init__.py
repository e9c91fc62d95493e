"""The torch code of each optimizer, in a module called as a recipe names it; `gym_optim.config` has its options."""
