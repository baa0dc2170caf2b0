"""Intervals of time: each instant of several streams belongs to one of them."""

from __future__ import annotations

import random

from ladder.receipts.spans import once, union


def test_spans_count_once_for_the_busiest_stream_and_there_for_the_first() -> None:
    draw = random.Random(5)
    spans = [
        (draw.randrange(3), begin := draw.randrange(900), begin + draw.randrange(1, 80)) for _ in range(120)
    ]
    owners: dict[int, tuple[object, ...]] = {}
    busy = [sum(last - first for stream, first, last in spans if stream == each) for each in range(3)]
    for place, (stream, first, last) in enumerate(spans):
        for at in range(first, last):
            rank = (-busy[stream], stream, first, last, place)
            owners[at] = min(owners.get(at, rank), rank)
    counts = [sum(rank[-1] == place for rank in owners.values()) for place in range(len(spans))]
    assert once(spans) == counts and sum(counts) == union([each[1:] for each in spans])
