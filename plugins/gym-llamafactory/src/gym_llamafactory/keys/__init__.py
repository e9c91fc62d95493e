"""The tables of the packages of Gym, one module for each part of a recipe."""
