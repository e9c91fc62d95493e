"""What each adapter makes of a model: a module for each method, named as its options in `gym_adapters.config` are."""
