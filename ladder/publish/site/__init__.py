"""The published site: our front page over asv's own pages, all offline and under a strict policy.

- `building` makes the whole site.
- `front` writes the front page from the data of `collected` and `history`, with the pictures of `figures`.
- `asvpages` makes asv's pages safe, with the scripts of `vendored`.
- `benches/_publishing.py` is the side of asv.
"""
