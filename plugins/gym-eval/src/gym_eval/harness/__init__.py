"""The evaluator `lm_eval`: tasks of EleutherAI's lm-evaluation-harness, asked of a model of Gym."""
