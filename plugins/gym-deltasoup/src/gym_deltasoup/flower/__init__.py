"""Federated rounds over Flower, whose aggregation is a merger: an extra, for flwr asks for older versions than the tested set."""
