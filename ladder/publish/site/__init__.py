"""The published site: a front page of ours over asv's own pages, all of it offline and under a strict policy.

`building` makes the whole of it; `front` writes the front page from what `collected` and `history` found, with the
pictures of `figures`; `asvpages` makes asv's pages safe, with the scripts of `vendored`. asv's side is
`benches/_publishing.py`.
"""
