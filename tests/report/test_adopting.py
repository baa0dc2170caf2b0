"""The sections of docs/adopt.md by rung, and what `ladder recommend` takes from them."""

from __future__ import annotations

import ast
import builtins
import re

from ladder.report import adopting, recommend, recommend_text
from ladder.report.advising import Sources
from tests.support import recipes, two_clocks
from tests.support.typed import typed

PAGE = """# Page
### `bf16`
Words.

```py
precise()
```
### Of no rung
```py
no()
```
### `fused_act`, `fused_norm`
```py
one()
```
```sh
shell
```
```py
two()
```
## The next part
```py
elsewhere()
```
"""


def test_sections_have_their_rungs_anchor_and_blocks() -> None:
    one, plain, two = adopting.read(PAGE)
    assert (one.rungs, one.anchor, one.blocks) == (("bf16",), "bf16", ("precise()\n",))
    assert (two.rungs, two.anchor) == (("fused_act", "fused_norm"), "fused_act-fused_norm")
    assert (plain.title, plain.rungs, plain.anchor) == ("Of no rung", (), "of-no-rung")
    assert two.blocks == ("one()\n", "two()\n")


def test_lines_and_code_are_of_the_given_rungs_alone() -> None:
    assert adopting.lines(["baseline", "joint_batch"]) == [] and adopting.markdown(["baseline"]) == []
    (line,) = adopting.lines(["cuda_graphs", "bf16", "joint_batch"])
    assert line == "in a loop of your own: docs/adopt.md has cuda_graphs, bf16"
    text = "\n".join(adopting.markdown(["cuda_graphs", "bf16"]))
    assert text.index("`bf16` (docs/adopt.md#bf16)") < text.index("`cuda_graphs` (docs/adopt.md#cuda_graphs)")
    assert "def precise():" in text and "def captured(" in text and "channels_last" not in text
    assert text.count("```") == 2 * text.count("```python") == 10


def test_the_code_of_graphs_comes_with_what_it_calls() -> None:
    """All rungs of the page but `compile`: pasted after the loop that the page begins with, each name is known."""
    named = [name for each in adopting.sections() for name in each.rungs if name != "compile"]
    text = "\n".join(adopting.markdown(named))
    order = [
        "Frozen networks (docs/adopt.md#frozen-networks)",
        "def g_phase():",
        "def captured(",
        "def whole():",
    ]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    code = ast.parse("\n".join(re.findall(r"```python\n(.+?)```", text, re.DOTALL)))
    names = {each for each in ast.walk(code) if isinstance(each, ast.Name)}
    given = {each.id for each in names if isinstance(each.ctx, ast.Store)} | {*vars(builtins)}
    for each in ast.walk(code):
        if isinstance(each, ast.FunctionDef):
            given |= {each.name, *(argument.arg for argument in each.args.args)}
        elif isinstance(each, ast.Import):
            given |= {alias.name for alias in each.names}
    loop = {"torch", "copy", "nn", "softplus", "device", "batch", "z_dim", "size", "G", "D", "G_ema"}
    assert {each.id for each in names} - given <= loop


def test_a_recommendation_names_the_page_and_its_markdown_has_the_code() -> None:
    result = typed(recipes.given(two_clocks.run()))
    found = recommend.recommend(Sources(result, None, {}))
    kept = [name for name in found.kept if name in adopting.anchors(found.kept)]
    assert "bf16" in kept
    shown = recommend_text.of_terminal(found, "for this machine", {})
    assert f"in a loop of your own: docs/adopt.md has {', '.join(kept)}" in shown and "```" not in shown
    assert "```python\ndef precise():" in recommend_text.markdown(found, "for this machine")
    data = recommend_text.data_of(found, "for this machine", {})
    assert data["adopt"] == adopting.anchors(kept) and data["adopt"]["bf16"] == "docs/adopt.md#bf16"
