//! The page's style: fonts of the reader's machine, light and dark mode by the reader's preference,
//! and print.

use super::grid;
use crate::plot::variables;

/// The whole style sheet.
pub fn sheet() -> String {
    format!(
        ":root{{{}--good:#00694b;--bad:#b3261e;--open:#7a5900;--card:#f6f7f9;color-scheme:light dark}}\
         @media(prefers-color-scheme:dark){{:root{{{}--good:#4fd1a5;--bad:#ff8a80;--open:#e8bf3c;--card:#1c2128}}}}{RULES}{}",
        variables(false),
        variables(true),
        grid::rules()
    )
}

const RULES: &str = "\
*{box-sizing:border-box}\
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,'Segoe UI','DejaVu Sans',Verdana,sans-serif}\
main,header,nav{max-width:1180px;margin:0 auto;padding:0 24px}\
header{padding-top:36px}\
h1{font-size:30px;line-height:1.2;margin:0 0 6px}\
h2{font-size:23px;line-height:1.25;margin:56px 0 4px;padding-top:20px;border-top:2px solid var(--grid)}\
h3{font-size:17px;margin:30px 0 8px}\
p{max-width:78ch;margin:8px 0}\
a{color:var(--s0)}\
.soft,small{color:var(--soft)}\
small{display:block;font-size:12px;font-weight:400;white-space:nowrap}\
ul.findings{list-style:none;margin:12px 0;padding:0;display:grid;gap:10px}\
ul.findings li{background:var(--card);border-left:4px solid var(--soft);border-radius:4px;padding:10px 14px}\
ul.findings li.holds,ul.findings li.nearly-holds{border-color:var(--good)}ul.findings li.does-not-hold{border-color:var(--bad)}ul.findings li.cannot-be-told{border-color:var(--open)}\
ul.findings b{font-weight:600}ul.findings p{margin:2px 0;max-width:none}\
.verdict{font-weight:600;white-space:nowrap}\
.holds .verdict,.nearly-holds .verdict{color:var(--good)}.does-not-hold .verdict{color:var(--bad)}.cannot-be-told .verdict{color:var(--open)}.not-measured .verdict{color:var(--soft)}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:22px;margin:14px 0}\
figure{margin:0;border:1px solid var(--grid);border-radius:6px;overflow:hidden;max-width:860px}\
figure svg{display:block;width:100%;height:auto}\
figure svg :is(polyline,path,text){pointer-events:none}figure svg :has(>title){pointer-events:all}\
figcaption{padding:4px 14px 10px;font-size:13px;color:var(--soft)}\
.wide{overflow-x:auto;max-width:none}.wide.full{margin-inline:min(0px,calc((1132px - 100vw)/2 + 40px))}\
table{border-collapse:collapse;font-size:14px;margin:6px 0 14px;font-variant-numeric:tabular-nums}\
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--grid);vertical-align:top;font-weight:400}\
thead th{font-weight:600;border-bottom:2px solid var(--grid);vertical-align:bottom}\
th small{white-space:normal;min-width:70px}\
code{font:.92em ui-monospace,'DejaVu Sans Mono',monospace}\
th.n,td.n{text-align:right;padding-left:10px}\
td:not(.n){overflow-wrap:break-word}.words td{overflow-wrap:anywhere}\
td.pale{color:var(--soft)}\
details{margin:10px 0}summary{cursor:pointer;color:var(--s0)}\
pre{background:var(--card);padding:12px 14px;overflow-x:auto;font:13px/1.45 ui-monospace,'DejaVu Sans Mono',monospace;border-radius:4px}\
ul.plain{margin:6px 0;padding-left:20px}\
footer{max-width:1180px;margin:60px auto 40px;padding:16px 24px 0;color:var(--soft);font-size:14px}\
@media print{details:not([open])>*{display:none}h2{break-after:avoid}figure,li{break-inside:avoid}}";
