"""The style sheet of the page: light and dark, phone and wide screen, paper. No fonts or files from elsewhere.

The six colours of models have a contrast of 3:1 or more with the page and differ in lightness, so that they stay apart
for colour-blind readers too; tests hold both.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1c2024; --soft: #5a626b; --rule: #d5d9de;
  --dot: .22; --link: #0067a8; --c0: #0f7fc0; --c1: #d96300; --c2: #0a3a34; --c3: #8c7d76; --c4: #7a2e00;
  --c5: #55157a; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14171a; --panel: #1c2024; --ink: #e8eaed;
  --soft: #a3abb5; --rule: #363c43; --link: #6db5ff; --c0: #3b96f5; --c1: #e9801e; --c2: #6f8250;
  --c3: #a55c97; --c4: #f2ec55; --c5: #4fe9ad; --dot: .4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1400px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6em; margin: .2em 0; } h2 { font-size: 1.3em; margin: 2em 0 .3em; padding-top: .6em;
  border-top: 2px solid var(--rule); } h3 { font-size: 1.05em; margin: 1.5em 0 .4em; }
p, ul { margin: .4em 0; max-width: 75ch; } ul { padding-left: 1.3em; } li { overflow-wrap: anywhere; }
a { color: var(--link); } nav a { display: inline-block; margin-right: 1em; padding: .3em 0; }
.soft, figcaption small, td small { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; margin: .6em 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35em .55em; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }
td small { display: block; white-space: nowrap; } td small.long { white-space: normal; min-width: 9em; }
th { font-weight: 600; } thead th { border-bottom-width: 2px; max-width: 14em; min-width: 5em;
  overflow-wrap: break-word; }
th:first-child { padding-left: 0; text-align: left; position: sticky; left: 0; background: var(--paper);
  max-width: min(24em, 42vw); overflow-wrap: break-word; min-width: 7em; }
th.long, th.long:first-child { min-width: min(11em, 40vw); }
details { margin: .6em 0; } summary { cursor: pointer; padding: .3em 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.4em; list-style: none; padding: 0; max-width: none; }
.legend b { display: inline-block; min-width: 1.6em; margin-right: .5em; padding: 0 .3em; text-align: center;
  color: var(--paper); font-size: .85em; border-radius: 3px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); gap: 14px;
  align-items: start; }
figure { margin: 0; padding: 10px 12px; background: var(--panel); border-radius: 6px; break-inside: avoid;
  min-width: 0; }
figcaption { margin-bottom: .4em; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
figcaption small { display: block; font-weight: 400; font-size: .87em; }
svg { display: block; width: 100%; max-width: 460px; height: auto; overflow: visible; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .strong { fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .zero { stroke: var(--soft); stroke-dasharray: 4 3; }
.whisker { fill: none; stroke: var(--ink); stroke-width: 1.2; }
.halo { fill: none; stroke: var(--panel); stroke-width: 3; }
.track { fill: none; stroke: currentColor; stroke-width: 1.5; } .dots path { fill: none; stroke: currentColor;
  stroke-width: 8; stroke-linecap: round; opacity: var(--dot); }
rect, .cell, circle { fill: currentColor; }
.sure { fill: var(--c0); } .unsure { fill: var(--panel); stroke: var(--soft); stroke-width: 1.5; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
b.c0 { background: var(--c0); } b.c1 { background: var(--c1); } b.c2 { background: var(--c2); }
b.c3 { background: var(--c3); } b.c4 { background: var(--c4); } b.c5 { background: var(--c5); }
@media print { body { max-width: none; font-size: 11px; padding: 0; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 9px; }
  figure { border: 1px solid var(--rule); background: none; --panel: #ffffff; }
  .panels { grid-template-columns: repeat(2, 1fr); } h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
"""
