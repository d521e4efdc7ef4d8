"""Draws ``idea.svg`` from real draws: a batch, and what becomes of it when a sample is erased."""

from __future__ import annotations

from pathlib import Path

from fedforget.algorithm.draws import Address, PrfPriorities, Purpose, draw_batch_without_replacement
from fedforget.algorithm.ids import IdSet, id_block

SEED, CLIENT, SIZE = bytes(range(32)), 3, 3
LEFT, WIDTH, ROW = 330, 620, 74


def row(top: int, title: str, subtitle: str, present: IdSet, gone: int | None) -> list[str]:
    """One line: every id at its priority, the drawn ones filled, the erased one dashed, with a word above it."""
    everyone = IdSet(range(8))
    priorities = PrfPriorities(SEED)
    values = priorities(Address(Purpose.BATCH, 1, 0, id_block(CLIENT)), everyone)[:, 0]
    ranks = values.argsort().argsort()
    places = draw_batch_without_replacement(priorities, CLIENT, present, 1, 0, SIZE)
    drawn = {present.ids[place] for place in places}
    shapes = [
        f'<text x="24" y="{top - 4}" class="t">{title}</text>',
        f'<text x="24" y="{top + 16}" class="s">{subtitle}</text>',
        f'<line x1="{LEFT}" y1="{top}" x2="{LEFT + WIDTH}" y2="{top}" class="l"/>',
    ]
    for identifier, rank in zip(everyone, ranks, strict=True):
        x = LEFT + (rank + 0.5) / len(everyone) * WIDTH
        kind = "gone" if identifier == gone else "drawn" if identifier in drawn else "idle"
        shapes.append(f'<circle cx="{x:.1f}" cy="{top}" r="15" class="{kind}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{top + 5}" class="n {kind}-n">{identifier}</text>')
        if kind == "gone":
            shapes.append(f'<text x="{x:.1f}" y="{top - 21}" class="e">erased</text>')
    return shapes


def picture() -> str:
    """Three rows under one another."""
    everyone = IdSet(range(8))
    rows = [
        ("mini-batch of 3 out of 8", "the smallest priorities are drawn", everyone, None),
        ("sample 3 is erased: it was drawn", "the next in line takes its place", everyone.without([3]), 3),
        ("sample 0 is erased: it was not", "nothing changes, nothing to recompute", everyone.without([0]), 0),
    ]
    body: list[str] = []
    for number, (title, subtitle, present, gone) in enumerate(rows):
        body += row(44 + number * ROW, title, subtitle, present, gone)
    height = 44 + len(rows) * ROW
    body.append(f'<text x="{LEFT}" y="{height - 8}" class="s">smallest priority</text>')
    body.append(f'<text x="{LEFT + WIDTH}" y="{height - 8}" class="s" text-anchor="end">largest</text>')
    style = (
        "text{font-family:system-ui,sans-serif;fill:#1f2933}.t{font-size:15px;font-weight:600}"
        ".s{font-size:13px;fill:#52606d}.l{stroke:#cbd2d9;stroke-width:2}.n{font-size:14px;text-anchor:middle}"
        ".drawn{fill:#0b69a3;stroke:#0b69a3}.drawn-n{fill:#fff;stroke:none;font-weight:600}"
        ".idle{fill:#fff;stroke:#9aa5b1;stroke-width:1.5}.idle-n{fill:#52606d;stroke:none}"
        ".gone{fill:#fff;stroke:#ba2525;stroke-width:1.5;stroke-dasharray:3 3}.gone-n{fill:#ba2525;stroke:none}"
        ".e{font-size:12px;fill:#ba2525;text-anchor:middle}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 {height}" role="img" '
        f'aria-label="A mini-batch before and after an erasure"><style>{style}</style>'
        f'<rect width="980" height="{height}" fill="#fff"/>' + "".join(body) + "</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("idea.svg").write_text(picture(), encoding="utf-8")
