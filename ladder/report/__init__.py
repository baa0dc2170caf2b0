"""A run, shown: the table, Markdown, CSV and the chart. Measures nothing."""
