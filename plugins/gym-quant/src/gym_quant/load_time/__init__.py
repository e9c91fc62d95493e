"""How weights of a base are stored while adapters train beside it: a module for each quantizer of the moment `load`."""
