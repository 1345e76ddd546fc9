"""The page's style: light and dark, wide and narrow, no fonts or pictures from elsewhere."""

CSS = """
:root {
  color-scheme: light dark;
  --font: system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif;
  --paper: #ffffff; --panel: #f6f7f9; --ink: #1f2328; --muted: #5a626c; --line: #dfe2e6; --link: #0a5ca8;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #e69f00; --c6: #000000;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --panel: #1d2126; --ink: #e6e8eb; --muted: #a3abb5; --line: #363c44; --link: #7cb8f2;
    --c0: #4aa8e0; --c1: #f0803c; --c2: #2fc39a; --c3: #e09cc2; --c4: #8fd0f5; --c5: #f0b83f; --c6: #f2f2f2;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 var(--font); }
main { max-width: 64rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h2::first-letter, figcaption::first-letter { text-transform: uppercase; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p, figcaption { margin: .5rem 0; max-width: 50rem; }
a { color: var(--link); }
.small, figcaption, caption { color: var(--muted); font-size: .875rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; margin: 1rem 0; padding: 0; }
nav li::first-letter { text-transform: uppercase; }
.scroll { overflow-x: auto; margin: .75rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--muted); line-height: 1.3; font-weight: 600; }
tbody th { font-weight: 500; }
.result { width: 100%; font-size: .875rem; }
.result th, .result td { padding-inline: .5rem; }
.result tbody th, .result thead th:first-child { padding-left: 0; min-width: 6.5rem; }
.result td, .result thead th + th { text-align: right; }
.result td { white-space: nowrap; }
.best { font-weight: 700; }
caption { text-align: left; padding-bottom: .5rem; }
figure { margin: 1.5rem 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 50rem; }
figure svg * { stroke-linejoin: round; }
figure svg.narrow { display: none; max-width: 26rem; margin: 0 auto; }
code, pre { font: .85rem/1.5 ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
pre { background: var(--panel); padding: .75rem 1rem; border-radius: 6px; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.settings td, .settings th { overflow-wrap: break-word; max-width: 24rem; }
summary { cursor: pointer; font-weight: 500; margin: .75rem 0; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.4rem; }
  th, td { padding: .35rem .5rem; }
  figure svg.wide { display: none; }
  figure svg.narrow { display: block; }
  .result tbody th, .result thead th:first-child { position: sticky; left: 0; background: var(--paper); max-width: 8rem;
    overflow-wrap: break-word; }
}
@media print { nav { display: none; } figure, tr { break-inside: avoid; } }
""".strip()
