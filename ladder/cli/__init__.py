"""The `ladder` command: options and messages. The work is done in the rooms below."""
