"""A stranger's result file: accepted, or one line why not."""
