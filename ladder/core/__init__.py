"""The pieces that every room stands on: records, tables, the job of a command."""
