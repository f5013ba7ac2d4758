//! The report of `stag top` as plain text: with `--once`, and where stdout is no terminal.

use std::fmt::Write;

use backing::size::Size;

use super::rates::{Row, Spent, Top};
use super::shown::shortened;
use crate::control::status::Status;

/// Rows of a table at most: the busiest.
const ROWS: usize = 20;

pub fn text(status: &Status, top: &Top) -> String {
    let mut out = String::new();
    let _ = write_text(&mut out, status, top);
    out
}

fn write_text(out: &mut String, status: &Status, top: &Top) -> std::fmt::Result {
    let connections: usize = status.sessions.iter().map(|session| session.connections.len()).sum();
    writeln!(
        out,
        "stag {}, process {}: {} sessions, {connections} connections, {} NFS clients, cores {}",
        status.version,
        status.pid,
        status.sessions.len(),
        status.nfs.clients.len(),
        top.cores.iter().map(|busy| format!("{:.0}%", busy * 100.0)).collect::<Vec<_>>().join(" "),
    )?;
    let files = !status.nfs.exports.is_empty();
    let disks = !files || !status.targets.is_empty();
    let tables = [
        ("unit", &top.units, disks),
        ("session", &top.sessions, disks),
        ("export", &top.exports, files),
        ("NFS client", &top.clients, files),
    ];
    for (title, rows, _) in tables.into_iter().filter(|(.., shown)| *shown) {
        writeln!(
            out,
            "\n{:<44} {:>9} {:>9} {:>8} {:>9} {:>9} {:>6} {:>8} {:>8}",
            title, "reads/s", "writes/s", "others", "read B/s", "write B/s", "bad/s", "mean µs", "p99 < µs"
        )?;
        let total = Row { name: "all".into(), rates: top.total.clone() };
        let total = (title == "unit").then_some(&total);
        for row in total.into_iter().chain(rows.iter().take(ROWS)) {
            let rates = &row.rates;
            let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
            writeln!(
                out,
                "{:<44} {:>9.0} {:>9.0} {:>8.0} {:>9} {:>9} {:>6.0} {:>8} {:>8}",
                shortened(&row.name, 44),
                rates.reads,
                rates.writes,
                rates.others,
                bytes(rates.read_bytes),
                bytes(rates.written_bytes),
                rates.failed,
                time(rates.mean_us),
                time(rates.p99_us),
            )?;
        }
        if rows.len() > ROWS {
            writeln!(out, "and {} more", rows.len() - ROWS)?;
        }
    }
    if !top.stages.is_empty() {
        writeln!(
            out,
            "\n{:<44} {:>9} {:>9} {:>9} {:>9}",
            "mean µs of stages", "order", "data", "medium", "send"
        )?;
    }
    for one in top.stages.iter().take(ROWS) {
        let name = shortened(&format!("{} {}", one.target, one.operation), 44);
        let Spent { order_us, data_us, medium_us, send_us, .. } = one;
        writeln!(out, "{name:<44} {order_us:>9.1} {data_us:>9.1} {medium_us:>9.1} {send_us:>9.1}")?;
    }
    Ok(())
}

/// Bytes a second in few letters: to a whole KiB.
fn bytes(rate: f64) -> String {
    match rate {
        rate if rate >= 1e9 => format!("{:.2} G", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.0} k", rate / 1e3),
        rate => Size(rate as u64).to_string(),
    }
}
