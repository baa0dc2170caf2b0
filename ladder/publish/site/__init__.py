"""The published site: our front page, reports and charts, above asv's own pages.

- `building` writes the site, from the templates in `templates/`.
- `collection` says what the front page shows, `figures` draws its pictures.
- `benches/_publishing.py` is the side of asv.
"""
