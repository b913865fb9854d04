"""The console script ``llmbench``: one file a subcommand."""
