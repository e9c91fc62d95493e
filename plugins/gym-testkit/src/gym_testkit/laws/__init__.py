"""The laws, one module for each kind of component; `package` and `readme` hold for every distribution."""
