"""The `rsn` command's subcommands. What they need is imported when they run: `rsn --help` stays quick."""
