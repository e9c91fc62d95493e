"""What writes to each tracker."""
