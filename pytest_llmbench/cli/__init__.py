"""The command ``llmbench``: what the history knows, without a measurement. One file a subcommand."""
