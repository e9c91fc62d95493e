"""Learning without gradients: rollouts, what a group teaches, and whether a change helps."""
