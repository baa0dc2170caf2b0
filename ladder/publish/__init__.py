"""For others: regressions, history over commits, checks of strangers' files, and the site."""
