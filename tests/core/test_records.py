"""Records refuse what no genuine file holds, and an error names the place, the value and what would be right."""

from __future__ import annotations

import math
from typing import Annotated, Generic, Literal, TypeVar

import pytest

from ladder.core.errors import UserError
from ladder.core.records import Ms, Name, Record, Text, read_record, size_between, write_record, write_whole

T = TypeVar("T")


class Inner(Record, kw_only=True):
    kind: Literal["wall", "gpu"]
    ms: Ms
    note: Text | None = None


class Outer(Record, Generic[T]):
    cells: Annotated[dict[Name, list[T]], size_between(2)]
    count: int = 3


FILE = Outer[Inner]
GOOD = {"kind": "wall", "ms": 1.5}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"cells": {"a": [GOOD | {"notes": "x"}]}}, "cells.a[0]: unknown key 'notes'; did you mean 'note'?"),
        ({"cells": {"a": [GOOD, {"ms": 1.0}]}}, "cells.a[1]: the key 'kind' is missing"),
        ({"cells": {"a": [GOOD | {"kind": "host"}]}}, "cells.a[0].kind: 'host' is none of 'wall', 'gpu'"),
        ({"cells": {"a": [GOOD | {"ms": -1}]}}, "cells.a[0].ms: -1 is not a number from 0.0001 to 1e+08"),
        ({"cells": {"a": [GOOD | {"ms": math.nan}]}}, "cells.a[0].ms: nan is not a number"),
        ({"cells": {"a": [GOOD | {"ms": True}]}}, "cells.a[0].ms: True is not a number"),
        ({"cells": {"a": [GOOD | {"note": "x\n"}]}}, "cells.a[0].note: 'x\\n' is not plain text"),
        ({"cells": {"A": []}}, "cells key 'A': 'A' is not a name"),
        ({"cells": {"a": [], "b": [], "c": []}}, "cells: an object is not 0 to 2 entries"),
        ({"cells": {}, "count": "3"}, "count: '3' is not `int`"),
        ([], "a list of 0 is not `object`"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(data, words):
    with pytest.raises(UserError) as error:
        read_record(FILE, data, "file.json")
    assert str(error.value).startswith(f"file.json: {words}") and "\n" not in str(error.value)


def test_a_record_is_written_as_it_was_read_and_an_unknown_value_is_left_out():
    data = {"cells": {"a": [GOOD]}}
    record = read_record(FILE, data)
    assert write_record(record) == data
    assert write_whole(record) == {"cells": {"a": [GOOD | {"note": None}]}, "count": 3}
    assert read_record(FILE, {"cells": {"a": [GOOD | {"note": None}]}}) == record
