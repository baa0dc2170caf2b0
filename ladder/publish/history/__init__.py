"""asv's results over commits: notes, series, screening for steps, and issues."""
