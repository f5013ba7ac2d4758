//! The page as one self-contained file: it loads nothing from elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::{Section, grid, overview, style, tables};
use crate::compare::line_ns;
use crate::experiment::Experiment;
use crate::figure::digits;
use crate::finding::{Judged, Verdict};
use crate::machine::Machine;
use crate::plot::escape;
use crate::point::Value;
use crate::progress::time;
use crate::record::{Disturbed, Outcome};
use crate::results::{Results, csv};

/// The room that a table of a machine's facts needs, pixels.
const FACTS: usize = 620;

/// The page of all experiments; `drawn` has the SVG charts of each.
pub fn page(sections: &[Section<'_>], drawn: &[Vec<String>]) -> String {
    let machine = sections.first().map(|section| section.results.info.machine.line()).unwrap_or_default();
    let mut body = format!(
        "<header><h1>Stag’s lab</h1><p class=soft>{}<br>{}</p></header><main>",
        escape(&machine),
        escape(&when(sections))
    );
    body += &contents(sections);
    for (section, svgs) in sections.iter().zip(drawn) {
        body += &experiment(section, svgs);
    }
    body += &machines(sections);
    body += READING;
    body += "</main>";
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>Stag’s lab</title><style>{}</style></head><body>{body}</body></html>\n",
        style::sheet()
    )
}

const READING: &str = "<h2 id=reading>How to read this</h2>\
<p>Each point is taken in several rounds; rounds go over all points in turn, every other one backwards, so that what drifts with time \
shifts no point against another. A figure is the median of the rounds, with the least and the most of them beside it. What is pale was \
disturbed in most rounds.</p>\
<p>A claim is judged at each point it speaks of. A ratio is taken within each round, so that what makes a whole round slower does not \
blur it; the median of the rounds stands for it. Its bounds are rounds: of eight the second and the seventh, of five the least and the most. More rounds \
would have their median beyond one of them less than once in 20 times, however noise is distributed. With fewer than five they are worked out by Student’s \
distribution, in which the noise of the experiment’s other points counts as much as four more rounds, and hold every round. The claim holds there if \
the bounds are within its limits, does not hold if they are beyond them, nearly holds if they reach over a limit by 5 % of it at most, and cannot be told if they reach \
farther. A claim about every point does not hold if it does not at one, by bounds that are surer the more points might seem so by chance; it \
cannot be told either if it holds at those that were measured and others failed, or were disturbed in every round. Disturbed rounds decide nothing.</p>\
<p>Each claim has a class: <i>the paper’s claim</i>; <i>by construction</i>, which follows from how the experiment is built, whatever is measured; or <i>our \
own mark</i>.</p>\
<p>A run is disturbed if other programs used more than a tenth of a processor meanwhile, or the hypervisor kept as much of one that had something to do. Some \
of them are taken again, whatever their figures are.</p>";

/// The time and duration of the measurement.
pub fn when(sections: &[Section<'_>]) -> String {
    let records = || sections.iter().flat_map(|section| &section.results.records);
    let first = records().map(|record| record.began).fold(f64::INFINITY, f64::min);
    let last = records().map(|record| record.began + record.seconds).fold(f64::NEG_INFINITY, f64::max);
    if !first.is_finite() {
        return "Nothing was measured.".to_owned();
    }
    let took: f64 = records().map(|record| record.seconds).sum();
    let took = std::time::Duration::try_from_secs_f64(took).unwrap_or_default();
    let quick = sections.iter().filter(|section| section.results.info.quick).count();
    let quick = match quick {
        0 => "",
        n if n == sections.len() => " A short run (--quick).",
        _ => " Some experiments are short runs (--quick).",
    };
    format!(
        "Measured from {} to {} UTC: {} runs in {}.{quick}",
        date(first),
        date(last),
        records().count(),
        time(took)
    )
}

/// Seconds since 1970 as `2026-11-21 22:05`, after Hinnant's days_from_civil.
pub fn date(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    let seconds = seconds.max(0.0) as i64;
    let (days, of_day) = (seconds / 86400, seconds % 86400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", of_day / 3600, of_day % 3600 / 60)
}

fn contents(sections: &[Section<'_>]) -> String {
    let cell = |text: &str| format!("<td>{text}</td>");
    let head = ["Experiment", "Repeats", "Claims"].map(|name| format!("<th>{name}</th>"));
    let counts = ["Holds", "Nearly holds", "Does not hold", "Cannot be told", "Not measured", "Runs"];
    let head: Vec<String> =
        head.into_iter().chain(counts.map(|name| format!("<th class=n>{name}</th>"))).collect();
    let row = |first: [String; 2], class: &str, counts: &[String], runs: &str| -> Vec<String> {
        let numbers = counts.iter().map(String::as_str).chain([runs]);
        let numbers = numbers.map(|number| format!("<td class=n>{number}</td>"));
        first.into_iter().chain([cell(class)]).chain(numbers).collect()
    };
    let mut rows = Vec::new();
    for section in sections {
        let experiment = &section.results.experiment;
        let measured = section.results.records.iter().filter(|record| record.sample().is_some()).count();
        for (at, (class, counts)) in overview(section.judged.iter()).iter().enumerate() {
            let (first, runs) = match at {
                0 => {
                    let link =
                        format!("<th><a href=\"#{}\">{}</a></th>", experiment.name, prose(&experiment.title));
                    ([link, cell(&prose(&experiment.paper))], measured.to_string())
                }
                _ => (["<th></th>".to_owned(), cell("")], String::new()),
            };
            rows.push(row(first, class, counts, &runs));
        }
    }
    if sections.len() > 1 {
        for (class, counts) in overview(sections.iter().flat_map(|section| &section.judged)) {
            rows.push(row(["<th>All</th>".to_owned(), cell("")], class, &counts, ""));
        }
    }
    grid::table(&head, &rows, None)
}

fn experiment(section: &Section<'_>, svgs: &[String]) -> String {
    let results = section.results;
    let experiment = &results.experiment;
    let mut text = format!("<section><h2 id=\"{}\">{}</h2>", experiment.name, prose(&experiment.title));
    if !experiment.paper.is_empty() {
        text += &format!("<p class=soft>Repeats: {}</p>", prose(&experiment.paper));
    }
    for paragraph in experiment.about.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()) {
        text += &format!("<p>{}</p>", prose(paragraph));
    }
    text += &findings(&section.judged);
    if !svgs.is_empty() {
        text += "<div class=plots>";
        for (named, svg) in section.charts.iter().zip(svgs) {
            let note = if named.note.is_empty() {
                String::new()
            } else {
                format!("<figcaption>{}</figcaption>", prose(&named.note))
            };
            text += &format!("<figure>{svg}{note}</figure>");
        }
        text += "</div>";
    }
    for table in &experiment.table {
        if let Some(html) = tables::asked_for(experiment, &section.found, table) {
            text += &format!("<h3>{}</h3>{html}{}", prose(&table.title), note(&table.note));
        }
    }
    for reference in &experiment.reference {
        text += &paper_table(reference);
    }
    text += &left_out(results);
    text += &notes(results);
    text += &links(results);
    text += &conditions(results);
    if !section.found.is_empty() {
        let all = tables::everything(experiment, &section.found);
        let open = if experiment.table.is_empty() && section.found.len() <= 24 { " open" } else { "" };
        text += &format!(
            "<details{open}><summary>All figures</summary>{all}<p><a download=\"{}.csv\" href=\"data:text/csv;base64,{}\">Every run as CSV</a></p></details>",
            experiment.name,
            base64(csv(experiment, &results.records).as_bytes())
        );
    }
    text += &format!(
        "<details><summary>The experiment’s file</summary><pre>{}</pre></details></section>",
        escape(&results.text)
    );
    text
}

/// Text of an experiment's file as HTML: text in backticks becomes code.
fn prose(text: &str) -> String {
    let parts = escape(text);
    let mut html = String::with_capacity(parts.len());
    let mut parts = parts.split('`').enumerate().peekable();
    while let Some((at, part)) = parts.next() {
        let closed = at % 2 == 1 && parts.peek().is_some();
        html += &match (at % 2 == 1, closed) {
            (true, true) => format!("<code>{part}</code>"),
            // An unmatched backtick stays as it is.
            (true, false) => format!("`{part}"),
            _ => part.to_owned(),
        };
    }
    html
}

fn note(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("<p class=soft>{}</p>", prose(text)) }
}

fn findings(judged: &[Judged]) -> String {
    if judged.is_empty() {
        return String::new();
    }
    let mut text = String::from("<ul class=findings>");
    for one in judged {
        let class = match one.verdict {
            Verdict::Holds => "holds",
            Verdict::NearlyHolds => "nearly-holds",
            Verdict::DoesNotHold => "does-not-hold",
            Verdict::CannotBeTold => "cannot-be-told",
            Verdict::NotMeasured => "not-measured",
        };
        let source = if one.source.is_empty() { String::new() } else { format!("{}: ", escape(&one.source)) };
        text += &format!(
            "<li class={class}><p><span class=soft>{source}</span><b>{}</b> <span class=verdict>— {}.</span> <span class=soft>({})</span></p><p>{}</p></li>",
            prose(&one.claim),
            one.verdict.words(),
            one.class.words(),
            prose(&one.sentence)
        );
    }
    text + "</ul>"
}

fn paper_table(reference: &crate::experiment::Reference) -> String {
    let title = format!("<h3>The paper: {}</h3>", escape(&reference.title));
    let head: Vec<String> =
        reference.columns.iter().map(|column| format!("<th>{}</th>", escape(column))).collect();
    let cells = |row: &Vec<Value>| -> Vec<String> {
        row.iter().map(|cell| format!("<td>{}</td>", escape(&cell.to_string()))).collect()
    };
    let rows: Vec<Vec<String>> = reference.rows.iter().map(cells).collect();
    title + &grid::table(&head, &rows, None) + &note(&reference.source)
}

/// Points without figures, by reason.
fn left_out(results: &Results) -> String {
    let mut whys: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for record in &results.records {
        match &record.outcome {
            Outcome::Measured(_) => {}
            Outcome::Missing(why) => _ = whys.entry(("Left out", why)).or_default().insert(&record.key),
            Outcome::Failed(why) => _ = whys.entry(("Failed", why)).or_default().insert(&record.key),
        }
    }
    let mut text = String::new();
    for ((what, why), keys) in &whys {
        let points = if keys.len() == 1 { "point" } else { "points" };
        let some: Vec<&str> = keys.iter().take(6).copied().collect();
        let more = if keys.len() > some.len() { ", …" } else { "" };
        text += &format!(
            "<li>{what}, {} {points}: {} <span class=soft>({}{more})</span></li>",
            keys.len(),
            escape(why),
            escape(&some.join("; "))
        );
    }
    for skip in results.experiment.skip.iter().filter(|skip| !skip.because.is_empty()) {
        text += &format!("<li>Not part of the experiment: {}</li>", prose(&skip.because));
    }
    for broken in &results.broken {
        text += &format!("<li>Not readable: {}</li>", escape(broken));
    }
    if text.is_empty() { text } else { format!("<h3>Without figures</h3><ul class=plain>{text}</ul>") }
}

fn notes(results: &Results) -> String {
    let all: BTreeSet<&String> = results
        .records
        .iter()
        .filter_map(|record| record.sample())
        .flat_map(|sample| &sample.notes)
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let items: String = all.iter().map(|note| format!("<li>{}</li>", prose(note))).collect();
    format!("<h3>Notes</h3><ul class=plain>{items}</ul>")
}

/// The configuration and the measurement of each emulated link.
fn links(results: &Results) -> String {
    const COLUMNS: &[(&str, &str, f64)] = &[
        ("Link", "/asked/name", 1.0),
        ("MTU", "/asked/mtu", 1.0),
        ("Round trip asked for (ms)", "/measured/round_trip_asked_us", 1e-3),
        ("Round trip: median (ms)", "/measured/round_trip_us/median", 1e-3),
        ("Round trip: 99th percentile (ms)", "/measured/round_trip_us/p99", 1e-3),
        ("To the client (Mb/s)", "/measured/a_to_b/rate_bits_per_second", 1e-6),
        ("To the target (Mb/s)", "/measured/b_to_a/rate_bits_per_second", 1e-6),
        ("Lost to the client", "/measured/a_to_b/lost", 1.0),
        ("Lost to the target", "/measured/b_to_a/lost", 1.0),
        ("Packets each way", "/measured/a_to_b/sent", 1.0),
        ("By", "/setup/backend", 1.0),
        ("Largest receive buffer of TCP (bytes)", "/setup/tcp_rmem/2", 1.0),
        ("Congestion control", "/setup/congestion_control", 1.0),
        ("Not held", "/measured/behind", 1.0),
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for record in results.records.iter().filter(|record| !record.link.is_null()) {
        let row: Vec<String> = COLUMNS
            .iter()
            .map(|(_, pointer, times)| match record.link.pointer(pointer) {
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(value) => value.as_f64().map(|number| digits(number * times, 4)).unwrap_or_default(),
                None => String::new(),
            })
            .collect();
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    rows.sort();
    let head: Vec<String> = COLUMNS.iter().map(|(name, ..)| format!("<th>{name}</th>")).collect();
    let cells =
        |row: &Vec<String>| row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    format!(
        "<details><summary>The links, as they were measured before the runs</summary>{}</details>",
        grid::table(&head, &rows, None)
    )
}

fn conditions(results: &Results) -> String {
    let records = &results.records;
    let mut words = vec![Disturbed::of(records).words()];
    if !records.is_empty() && records.iter().all(|record| record.load.awake) {
        words.push("processors were kept awake".to_owned());
    }
    let lines: Vec<u32> = records.iter().filter_map(|record| record.load.cache_line_ns).collect();
    if let (Some(median), Some(least), Some(most)) =
        (line_ns(results), lines.iter().min(), lines.iter().max())
    {
        words.push(format!(
            "a cache line took {median} ns from the target’s processor to the client’s ({least} to {most})"
        ));
    }
    let pinning = &results.info.pinning;
    if let (Some(target), Some(client)) = (pinning.target.first(), pinning.client.first()) {
        words.push(format!("the target ran on processor {target}, the client on {client}"));
    }
    words.push(format!("seeds from {}", results.info.seed));
    format!("<p class=soft>{}.</p>", escape(&words.join("; ")))
}

/// The machines of the sections, each with its experiments.
pub(crate) fn machines_of<'a>(sections: &'a [Section<'_>]) -> Vec<(&'a Machine, Vec<&'a Experiment>)> {
    let mut seen: Vec<(&Machine, Vec<&Experiment>)> = Vec::new();
    for section in sections {
        let machine = &section.results.info.machine;
        match seen.iter_mut().find(|(known, _)| known.differs(machine).is_none()) {
            Some((_, experiments)) => experiments.push(&section.results.experiment),
            None => seen.push((machine, vec![&section.results.experiment])),
        }
    }
    seen
}

fn machines(sections: &[Section<'_>]) -> String {
    let seen = machines_of(sections);
    let mut text = String::from("<h2 id=machine>The machine</h2>");
    for (machine, experiments) in &seen {
        if seen.len() > 1 {
            let names: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
            text += &format!("<h3>{}</h3>", escape(&names.join(", ")));
        }
        let facts = facts(machine).into_iter().filter(|(_, value)| !value.is_empty());
        let row = |(name, value): (String, String)| {
            vec![format!("<th>{}</th>", escape(&name)), format!("<td>{}</td>", escape(&value))]
        };
        text += &grid::table(&[], &facts.map(row).collect::<Vec<_>>(), Some(FACTS));
    }
    text
}

fn facts(machine: &Machine) -> Vec<(String, String)> {
    let sets = |sets: &[Vec<usize>]| {
        let words = sets.iter().map(|set| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        words.collect::<Vec<_>>().join(" | ")
    };
    let mut facts = vec![
        ("Processor".to_owned(), machine.cpu.clone()),
        ("Processors".to_owned(), machine.processors.len().to_string()),
        ("Threads of one core".to_owned(), sets(&machine.siblings)),
        ("Share their last cache".to_owned(), sets(&machine.share_cache)),
        ("Virtual machine".to_owned(), machine.hypervisor.clone()),
        ("Governor".to_owned(), machine.governor.clone()),
        (
            "Clock at the beginning".to_owned(),
            if machine.mhz > 0.0 { format!("{:.0} MHz", machine.mhz) } else { String::new() },
        ),
        ("Microcode".to_owned(), machine.microcode.clone()),
        ("Memory".to_owned(), format!("{:.1} GiB", bytes_gib(machine.memory))),
        ("Kernel".to_owned(), machine.kernel.clone()),
        ("Kernel’s command line".to_owned(), machine.kernel_options.clone()),
        ("File system of the results".to_owned(), machine.store.clone()),
        ("System".to_owned(), machine.system.clone()),
        ("Stag".to_owned(), [machine.stag.as_str(), machine.commit.as_str()].join(" ").trim().to_owned()),
        ("Stag’s binary (SHA-256)".to_owned(), machine.binary.clone()),
    ];
    facts.extend(machine.peers.iter().map(|(name, version)| (format!("Peer: {name}"), version.clone())));
    facts.extend(machine.sysctl.iter().map(|(name, value)| (name.clone(), value.clone())));
    facts.extend(
        machine.mitigations.iter().map(|(name, value)| (format!("Mitigation: {name}"), value.clone())),
    );
    facts
}

#[expect(clippy::cast_precision_loss, reason = "for readers")]
fn bytes_gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Encodes base64 (RFC 4648 §4).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| LETTERS.get((bits & 63) as usize).copied().map_or('A', char::from);
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            text.push(if at <= three.len() { letter(bits >> shift) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0.0, "1970-01-01 00:00"),
            (951_827_696.0, "2000-02-29 12:34"),
            (1_795_298_700.0, "2026-11-21 22:05"),
            (4_102_444_799.0, "2099-12-31 23:59"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }
}
