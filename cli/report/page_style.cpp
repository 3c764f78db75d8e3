// The style of all pages.
#include <string>

#include "cli/report/report.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1c1c1a; --soft: #62615b; --grid: #e3e2dd; --shade: #00000040; --bad: #b3261e; --good: #1b7f3b;
  --single: #52514e; --averaging: #a65b00; --dp: #1f6cc7; --ddp: #0b7a57; --copies: #7a3fb0;
  --input: #8f8d86; --scatter: #cf9420; --replicate: #b98300; --forward: #5c9be6; --gather: #b36f00; --loss: #5598e7;
  --backward: #2a66bd; --communication: #d03b3b; --waiting: #a0449a; --update: #4a9a78; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #191918; --ink: #f1f0ec; --soft: #a3a199; --grid: #383733; --shade: #ffffff40; --bad: #ff8a80; --good: #6fcf97;
  --single: #c3c2b7; --averaging: #f0a24a; --dp: #6aa9f2; --ddp: #3fc79a; --copies: #c79cf0;
  --input: #7d7b75; --scatter: #c98f1c; --replicate: #eda100; --forward: #86b6ef; --gather: #b36f00; --loss: #5598e7;
  --backward: #2f6fc9; --communication: #e66767; --waiting: #c77fd0; --update: #4d9a78; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } p.note, footer, caption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; scrollbar-width: thin; background: linear-gradient(to right, var(--page) 35%, transparent) 0 0 / 48px 100% no-repeat local,
  linear-gradient(to left, var(--page) 35%, transparent) 100% 0 / 48px 100% no-repeat local, linear-gradient(to right, var(--shade), transparent) 0 0 / 16px 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) 100% 0 / 16px 100% no-repeat scroll; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .8rem; width: 100%; }
th, td { padding: .3rem .33rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
table.numbers :is(th, td):last-child { text-align: right; } th:first-child, td:first-child, th:last-child, td:last-child, td.why { text-align: left; } td.why { color: var(--bad); white-space: normal; }
td.yes { color: var(--good); } td.no { color: var(--bad); } dt { color: var(--soft); } dd { margin: 0 0 .5rem 0; overflow-wrap: anywhere; }
li, h1, p { overflow-wrap: anywhere; max-width: 64rem; } dl.words { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; } dl.words dd { margin: 0; overflow-wrap: break-word; }
svg { display: block; width: 100%; height: auto; min-width: 700px; max-width: 860px; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--grid); } .curve { fill: none; stroke-width: 2; } .range { stroke-width: 5; opacity: .45; } .leader { stroke: var(--soft); stroke-width: .7; }
svg text.value { paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.dashed { stroke-dasharray: 6 4; } .ideal { stroke: var(--soft); stroke-dasharray: 5 5; } svg text.ink-ideal { fill: var(--soft); }
.over-single { stroke-width: 8; opacity: .35; } .over-dp { stroke-width: 4; } .over-ddp { stroke-width: 1.5; }
@media screen and (max-width: 720px) { h1 { font-size: 1.2rem; } dl.words { grid-template-columns: 1fr; } dl.words dd { margin-bottom: .4rem; }
  th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); } }
@media print { :root { color-scheme: light; --page: #ffffff; } @page { margin: 12mm; } svg, tr { break-inside: avoid; } h2 { break-after: avoid; } body { max-width: none; margin: 0; padding: 0; }
  .wide { overflow: visible; background: none; } svg { min-width: 0; } table { font-size: .58rem; } th, td { white-space: normal; padding: .15rem .25rem; } }
)";

}  // namespace

std::string page_style() {
  std::string out = kStyle;
  for (const char* const mode : {"single", "averaging", "dp", "ddp", "copies"})
    out += concat(".stroke-", mode, " { stroke: var(--", mode, "); } .fill-", mode, " { fill: var(--", mode,
                  "); } svg text.ink-", mode, " { fill: var(--", mode, "); }\n");
  for (const PartName& part : kStepParts) out += concat(".part-", part.name, " { fill: var(--", part.name, "); }\n");
  return out + concat(".part-", kWaiting, " { fill: var(--", kWaiting, "); }\n");
}

}  // namespace duet::cli
