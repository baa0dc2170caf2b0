"""asv's pages made safe to publish: no script from elsewhere, a strict policy, and text that stays text.

asv writes names and machine facts into its pages as HTML. Three barriers stop hostile text. The scripts of asv that
insert HTML are changed (REPLACED). The policy runs only scripts that are files of the site. The bundled Bootstrap
cleans the text of tooltips. REPLACED quotes asv 0.6.6 exactly, and any other version stops the publishing.

asv also calls steps regressions, from single processes and with its own threshold. Its page of regressions, its
feed and the list's columns of changes are removed; only `ladder history` confirms a regression.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ladder.base.errors import UserError
from ladder.publish.site import vendored

# `unsafe-inline` is for the `style` attributes of flot and asv, which can neither load nor run anything.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
OURS = ("keyboard.js", "contrast.css")
VENDOR, FONTS = "vendor", "fonts"

# File: [(asv's text, its count, our text)].
_TEXT_TOOLTIP = ("html: true", "html: false")  # asv's style sheet keeps line breaks
_JOINED = ("details.join('<br/>')", "details.join('\\n')")
_BUTTON = ('btn-xs active" role="button"/>', 'btn-xs active" role="button" tabindex="0"/>')
REPLACED: dict[str, list[tuple[str, int, str]]] = {
    "asv_ui.js": [
        (
            "$(\n            '<div class=\"panel-heading\">' + heading + '</div>')",
            1,
            "$('<div class=\"panel-heading\"/>').text(heading)",
        ),
        (_BUTTON[0], 1, _BUTTON[1]),
        (
            '"Perhaps web server has gone down."',
            1,
            '"This page needs a web server: run `asv preview` instead of opening the file."',
        ),
    ],
    "summarygrid.js": [
        (
            "$(\n            '<a class=\"btn benchmark-container\" href=\"#' + bm.name +\n            '\"/>')",
            1,
            "$('<a class=\"btn benchmark-container\"/>').attr('href', '#' + bm.name)",
        ),
        (
            "$(\n            '<div id=\"summarygrid-' + bm.name + '\" class=\"benchmark-plot\"/>')",
            1,
            "$('<div class=\"benchmark-plot\"/>').attr('id', 'summarygrid-' + bm.name)",
        ),
        (
            "$('<div class=\"benchmark-text\">' + display_name + '</div>')",
            1,
            "$('<div class=\"benchmark-text\"/>').text(display_name)",
        ),
        ("$('<h1>' + group + '</h1>')", 1, "$('<h1/>').text(group)"),
        (_TEXT_TOOLTIP[0], 2, _TEXT_TOOLTIP[1]),
    ],
    "summarylist.js": [
        (
            """'<th data-sort="float">Recent change</th>' +
                           '<th data-sort="string">Changed at</th>' +
                           """,
            1,
            "",
        ),
        ("tr.append(change_td);\n            tr.append(changed_at_td);", 1, ""),
        (_JOINED[0], 1, _JOINED[1]),
        (_TEXT_TOOLTIP[0], 1, _TEXT_TOOLTIP[1]),
    ],
    "graphdisplay.js": [
        (
            "$(\n                    '<li class=\"dropdown\">' +\n"
            '                        \'<label class="nav-header"><b class="caret-right"/> \' + parts[j] +\n'
            '                        \'</label><ul class="nav nav-list tree" style="display: none;"/></li>\');',
            1,
            "$(\n                    '<li class=\"dropdown\">' +\n"
            '                        \'<label class="nav-header" role="button" tabindex="0">\' +\n'
            "                        '<b class=\"caret-right\"></b> <span></span></label>' +\n"
            '                        \'<ul class="nav nav-list tree" style="display: none;"></ul></li>\');\n'
            "                top.find('span').text(parts[j]);",
        ),
        (
            "$('<li><a href=\"#' + bm_name + '\">' + name + '</li>')",
            1,
            "$('<li/>').append($('<a/>').attr('href', '#' + bm_name).text(name))",
        ),
        (_JOINED[0], 1, _JOINED[1]),
        (_TEXT_TOOLTIP[0], 3, _TEXT_TOOLTIP[1]),
        # orderBars computes with the names of categories and gets NaN, so bars of two machines were not drawn.
        (
            "                        point[0] = $(\"<span>\").text('' + point[0]).html();\n"
            "                    });\n                });\n",
            1,
            "                        point[0] = $(\"<span>\").text('' + point[0]).html();\n"
            "                    });\n"
            "                    graph.bars = {order: null};\n"
            "                    graph.shift = 0.6 * (i - (graphs.length - 1) / 2) / graphs.length;\n"
            "                });\n"
            "                var rungs = {};\n"  # all rungs, with room for a bar on both sides
            "                $.each(graphs, function(i, graph) {\n"
            "                    $.each(graph.data, function(j, point) {\n"
            "                        if (point[1] != null) rungs[point[0]] = true;\n"
            "                    });\n"
            "                });\n"
            "                options.xaxis.min = -0.5;\n"
            "                options.xaxis.max = Object.keys(rungs).length - 0.5;\n"
            "                options.xaxis.labelWidth = 150;\n"
            "                options.xaxis.labelHeight = 100;\n"
            "                options.hooks = {processDatapoints: [function(plot, series, datapoints) {\n"
            "                    for (var k = 0; k < datapoints.points.length; k += datapoints.pointsize) {\n"
            "                        if (datapoints.points[k] != null) datapoints.points[k] += series.shift;\n"
            "                    }\n"
            "                }]};\n",
        ),
        (
            "var graph_div = $('#main-graph');",
            1,
            "var graph_div = $('#main-graph').toggleClass('names', options.xaxis.mode == 'categories');",
        ),
        # Only a point on the axis of commits is a commit.
        (
            "var commit_hash = get_commit_hash(item.datapoint[0]);\n                    if (commit_hash) {",
            1,
            "var commit_hash = x_coordinate_axis == 0 ? get_commit_hash(item.datapoint[0])\n"
            "                        : item.series.data[item.dataIndex][0];\n"
            "                    if (commit_hash) {",
        ),
        (
            'padding-left:0.25em;font-size:smaller;\'>" + tag + "</div>");',
            1,
            'padding-left:0.25em;font-size:smaller;\'>" + $("<span>").text(tag).html() + "</div>");',
        ),
    ],
    "asv.js": [
        # An old address, of a removed page or benchmark, shows the grid.
        (
            "info.params['benchmark'] = info.location[0];\n            show_page('graphdisplay', info.params);",
            1,
            "info.params['benchmark'] = info.location[0];\n"
            "            var there = Object.prototype.hasOwnProperty.call(main_json.benchmarks, info.location[0]);\n"
            "            show_page(there ? 'graphdisplay' : '', info.params);",
        ),
    ],
}
# Files that call a step a regression, and the page for failed loads from elsewhere.
DROPPED = ("regressions.js", "regressions.css", "error.html")
_PARTS = (
    r'<link href="regressions\.css"[^>]*>',
    r'<link rel="alternate" [^>]*href="regressions\.xml"/>',
    r'<li id="nav-li-regressions">.*?</li>',
    r'<div id="regressions-display"[^>]*>\s*<div id="regressions-body">\s*</div>\s*</div>',
)


def secure(folder: Path) -> None:
    """Rewrite the pages that asv has put into ``folder``.

    Raises:
        UserError: the pages are not those of asv 0.6.6.
    """
    assets = vendored.load()
    (folder / VENDOR).mkdir()
    (folder / FONTS).mkdir()  # Bootstrap's style sheet looks for them there
    for asset in assets:
        kind = VENDOR if asset.file.endswith((".js", ".css")) else FONTS
        shutil.copyfile(vendored.ASSETS / asset.file, folder / kind / asset.file)
        if asset.license_file:
            shutil.copyfile(vendored.ASSETS / asset.license_file, folder / VENDOR / asset.license_file)
    for name in OURS:
        shutil.copyfile(vendored.ASSETS / name, folder / name)
    for name, pieces in REPLACED.items():
        path = folder / name
        path.write_text(_changed(name, path.read_text(encoding="utf-8"), pieces), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(_page(page.read_text(encoding="utf-8"), assets), encoding="utf-8")
    for name in DROPPED:
        (folder / name).unlink()


def _changed(name: str, text: str, pieces: list[tuple[str, int, str]]) -> str:
    for old, times, new in pieces:
        if (found := text.count(old)) != times:
            raise UserError(_other(name, f"{' '.join(old.split())[:60]} is there {found} times"))
        text = text.replace(old, new)
    return text


def _page(text: str, assets: list[vendored.Asset]) -> str:
    """Return asv's page with our scripts and styles in place of external ones, without inline scripts and
    handlers.
    """
    outside = 0

    def script(found: re.Match[str]) -> str:
        nonlocal outside
        source = re.search(r'\bsrc="([^"]*)"', found[1])
        if source and source[1] in DROPPED:
            return ""
        if source and not source[1].startswith("https:"):
            return f'<script src="{source[1]}"></script>'
        outside += 1
        return ""

    text = re.sub(r"<script\b([^>]*)>[\s\S]*?</script>", script, text)
    parts = []
    for part in _PARTS:
        text, times = re.subn(part, "", text)
        parts.append(times)
    text, sheets = re.subn(r'<link\b[^>]*\bhref="https:[^>]*>', "", text)
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="referrer" content="no-referrer">',
        *(_tag(asset) for asset in assets if asset.file.endswith((".js", ".css"))),
        f'<script src="{OURS[0]}"></script>',
    ]
    meta = r'<meta http-equiv="Content-Type"[^>]*>'
    text, heads = re.subn(meta, lambda found: "\n    ".join([found[0], *head]), text)
    bar, links = (
        '<ul class="nav navbar-nav navbar-left">',
        text.count('<ul class="nav navbar-nav navbar-left">'),
    )
    text = text.replace(bar, f'{bar}\n        <li><a href="../index.html">Front page</a></li>')
    text = text.replace("<html>", '<html lang="en">')
    text = text.replace("</head>", f'  <link rel="stylesheet" href="{OURS[1]}">\n  </head>')
    text = text.replace(' role="button"', ' role="button" tabindex="0"')
    text = text.replace('target="_blank"', 'target="_blank" rel="noopener noreferrer"')
    text = re.sub(r"\n\s*\n(\s*\n)+", "\n\n", text)
    if (outside, sheets, heads, links) != (10, 1, 1, 1):
        raise UserError(_other("index.html", f"{outside} scripts to replace"))
    if parts != [1] * len(_PARTS) or "regressions" in text:
        raise UserError(_other("index.html", "its page of regressions is another"))
    if left := re.search(r"\son[a-z]+\s*=|javascript:|(?:src|href)=\"(?:https?:)?//(?!github)", text):
        raise UserError(_other("index.html", f"{left[0].strip()} is in it"))
    return text


def _other(name: str, why: str) -> str:
    return f"asv's {name} is not the one of asv 0.6.6 ({why}); install what requirements.lock names"


def _tag(asset: vendored.Asset) -> str:
    integrity = f'integrity="sha256-{asset.sha256}"'
    if asset.file.endswith(".css"):
        return f'<link rel="stylesheet" href="{VENDOR}/{asset.file}" {integrity}>'
    return f'<script src="{VENDOR}/{asset.file}" {integrity}></script>'
