"""The validation of a stranger's result file: accepted, or refused with one line of why."""
