"""The `ladder` command: its options and messages. The other packages of `ladder` do the work."""
