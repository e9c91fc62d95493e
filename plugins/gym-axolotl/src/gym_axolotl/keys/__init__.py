"""The tables: keys of axolotl by what they are about."""
