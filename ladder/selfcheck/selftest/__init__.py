"""`ladder doctor --selftest`: planted slowdowns and identical programs, judged by the rules of a run."""
