"""The rewards that come with this package: in each module the options of a reward, and the score that it builds."""
