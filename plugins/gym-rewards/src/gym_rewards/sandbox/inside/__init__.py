"""What runs in the processes of a sandbox. Standard library alone, and none of the package around it."""
