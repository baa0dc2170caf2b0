"""The result of a run: its file, its record, its schema, and how it is judged. Starts no process."""
