"""The command ``llmbench``: what the history knows, without a measurement."""
