//! Draws the live view of `stag top`. Must not fail, whatever the size of the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, RenderDirection, Row, Sparkline, Table, Wrap};

use super::details;
use super::items::{Column, Item, Tab};
use super::paint::Paint;
use super::shown::{Unit, shortened};
use super::state::State;
use crate::shown::duration;

/// The smallest screen.
pub const WIDTH: u16 = 80;
pub const HEIGHT: u16 = 24;
/// Cores that are listed one by one at most.
const CORES: usize = 8;
/// Columns of the title of a line over time.
const SERIES: u16 = 24;

pub fn draw(frame: &mut Frame<'_>, state: &mut State, paint: Paint) {
    let area = frame.area();
    if area.width < WIDTH || area.height < HEIGHT {
        let text = format!(
            "stag top needs {WIDTH} columns and {HEIGHT} lines; this terminal has {} and {}. q quits.",
            area.width, area.height
        );
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let shown = state.details().map_or(state.tab(), |details| details.tab);
    let series = shown.series().len() as u16;
    let parts = [
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(series + 1),
        Constraint::Length(2),
    ];
    let [head, tabs, middle, lines, foot] = Layout::vertical(parts).areas(area);
    draw_head(frame, head, state, paint);
    frame.render_widget(tabs_line(state, paint), tabs);
    let name = match state.details().cloned() {
        Some(details) => {
            draw_details(frame, middle, state, &details, paint);
            Some(details.name)
        }
        None => {
            draw_table(frame, middle, state, paint);
            state.chosen().map(|item| item.name.clone())
        }
    };
    if let Some(name) = name {
        draw_lines(frame, lines, state, (shown, &name), paint);
    }
    frame.render_widget(Paragraph::new(foot_lines(state, area.width, paint)), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, paint: Paint) {
    let status = &state.shown().status;
    let mut title = vec![
        Span::styled(format!("stag {}", status.version), paint.title()),
        Span::raw(format!(", process {}, up {}", status.pid, duration(status.uptime_s))),
    ];
    if let Some(top) = &state.shown().top {
        title.push(Span::raw(format!(", over {}", duration(top.seconds))));
    }
    if state.is_paused() {
        title.push(Span::raw("  "));
        title.push(Span::styled("PAUSED: p goes on", paint.trouble()));
    }
    let second = match state.trouble() {
        Some(trouble) => Line::styled(format!("! {trouble}"), paint.trouble()),
        None => Line::raw(totals(state)),
    };
    frame.render_widget(Paragraph::new(vec![Line::from(title), second]), area);
}

/// All units together, and the cores.
fn totals(state: &State) -> String {
    let Some(top) = &state.shown().top else { return "waiting for the second report".into() };
    let total = &top.total;
    let rate = |value: f64| Unit::Rate.show(value);
    let cores = match top.cores.len() {
        0..=CORES => top.cores.iter().map(|busy| Unit::Part.show(*busy)).collect::<Vec<_>>().join(" "),
        count => {
            let mean = top.cores.iter().sum::<f64>() / count as f64;
            let most = top.cores.iter().copied().fold(0.0, f64::max);
            format!("mean {}, busiest {}", Unit::Part.show(mean), Unit::Part.show(most))
        }
    };
    let calls: f64 = top.exports.iter().map(|row| row.rates.others).sum();
    let files = if top.exports.is_empty() { String::new() } else { format!(", {} calls/s", rate(calls)) };
    format!(
        "{} commands/s{files}, read {}B/s, written {}B/s, mean {}, cores {cores}",
        rate(total.all()),
        rate(total.read_bytes + top.exports.iter().map(|row| row.rates.read_bytes).sum::<f64>()),
        rate(total.written_bytes + top.exports.iter().map(|row| row.rates.written_bytes).sum::<f64>()),
        Unit::Micros.show_known(total.mean_us),
    )
}

fn tabs_line(state: &State, paint: Paint) -> Line<'static> {
    let mut spans = Vec::new();
    for tab in state.tabs() {
        let style = if tab == state.tab() { paint.chosen() } else { Default::default() };
        spans.push(Span::styled(format!(" {} ", tab as usize + 1), paint.key()));
        spans.push(Span::styled(format!(" {} {} ", tab.title(), state.count(tab)), style));
    }
    Line::from(spans)
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &mut State, paint: Paint) {
    state.fit(usize::from(area.height.saturating_sub(1)));
    let columns: Vec<(usize, &Column)> = columns(state.tab(), area.width);
    let taken: u16 = columns.iter().map(|(_, column)| column.width).sum();
    let room = area.width.saturating_sub(taken);
    let order = state.order();
    let mark = if order.reversed { "▲" } else { "▼" };
    let marked = |title: &str, by: Option<usize>| match order.by == by {
        true => format!("{mark}{title}"),
        false => title.to_owned(),
    };
    let (_, count) = state.place();
    let title = match state.filter() {
        "" => marked(state.tab().one(), None),
        filter => format!("{} \"{filter}\": {count}", marked(state.tab().one(), None)),
    };
    let titles = columns.iter().map(|(at, column)| right(marked(column.title, Some(*at))));
    let header = std::iter::once(Text::raw(title)).chain(titles);
    let row = |(item, chosen): (&Item, bool)| {
        let value = |(at, column): &(usize, &Column)| {
            right(column.unit.show_known(item.values.get(*at).copied().flatten()))
        };
        let name = match item.troubled {
            true => Text::styled(shortened(&format!("! {}", item.name), room.into()), paint.trouble()),
            false => Text::raw(shortened(&item.name, room.into())),
        };
        let row = Row::new(std::iter::once(name).chain(columns.iter().map(value)));
        if chosen { row.style(paint.chosen()) } else { row }
    };
    let rows: Vec<Row<'_>> = state.on_screen().map(row).collect();
    let empty = rows.is_empty();
    let widths = std::iter::once(room).chain(columns.iter().map(|(_, column)| column.width));
    let table = Table::new(rows, widths.map(Constraint::Length))
        .column_spacing(0)
        .header(Row::new(header).style(paint.heading()));
    frame.render_widget(table, area);
    if empty && area.height > 1 {
        let text = match state.filter() {
            "" => "  none",
            _ => "  none with this text; Esc shows all",
        };
        frame.render_widget(Line::raw(text), Rect { y: area.y + 1, height: 1, ..area });
    }
}

/// Columns for a screen of this width, with their numbers.
fn columns(tab: Tab, width: u16) -> Vec<(usize, &'static Column)> {
    tab.columns().enumerate().filter(|(_, column)| column.from <= width).collect()
}

fn right(text: String) -> Text<'static> {
    Text::from(text).right_aligned()
}

fn draw_details(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &mut State,
    details: &super::state::Details,
    paint: Paint,
) {
    let [title, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let lines = details::lines(state, details, area.width, paint);
    let count = lines.len();
    state.fit_details(count, below.height.into());
    let scrolled = state.details().map_or(0, |details| details.scrolled);
    let rest = count.saturating_sub(scrolled + usize::from(below.height));
    let more = if rest > 0 { format!("  ({rest} more lines: ↓)") } else { String::new() };
    let name = format!("{} {}", details.tab.one(), details.name);
    let name = shortened(&name, usize::from(area.width).saturating_sub(more.chars().count()));
    frame.render_widget(Line::from(vec![Span::styled(name, paint.title()), Span::raw(more)]), title);
    let seen: Vec<Line<'static>> = lines.into_iter().skip(scrolled).collect();
    frame.render_widget(Paragraph::new(seen), below);
}

/// The chosen row over time, one line a series; the latest value is at the right end.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, state: &State, (tab, name): (Tab, &str), paint: Paint) {
    let rows = Layout::vertical(vec![Constraint::Length(1); tab.series().len() + 1]).split(area);
    let (place, count) = state.place();
    let place = if state.details().is_none() { format!("{place} of {count}  ") } else { String::new() };
    let seen = shortened(name, usize::from(area.width).saturating_sub(place.chars().count() + 4));
    let title = format!("── {place}{seen} ");
    let rule: String = title.chars().chain(std::iter::repeat('─')).take(area.width.into()).collect();
    frame.render_widget(Line::raw(rule), rows[0]);
    for (at, (title, unit)) in tab.series().iter().enumerate() {
        let [left, right] =
            Layout::horizontal([Constraint::Length(SERIES), Constraint::Fill(1)]).areas(rows[at + 1]);
        let values: Vec<Option<f64>> =
            state.history().latest(tab, name, at).take(right.width.into()).collect();
        let latest = unit.show_known(values.first().copied().flatten());
        frame.render_widget(Line::raw(format!("{title:<13}{latest:>9}")), left);
        let whole = |value: f64| (value * 1000.0) as u64;
        let most = values.iter().flatten().copied().fold(0.0, f64::max);
        let most = if *unit == Unit::Part { 1.0 } else { most };
        let line = Sparkline::default()
            .data(values.into_iter().map(|value| value.map(whole)))
            .max(whole(most).max(1))
            .direction(RenderDirection::RightToLeft)
            .style(paint.line());
        frame.render_widget(line, right);
    }
}

fn foot_lines(state: &State, width: u16, paint: Paint) -> Vec<Line<'static>> {
    if state.is_typing() {
        let typed = vec![Span::styled("/", paint.key()), Span::raw(format!("{}█", state.filter()))];
        return vec![
            Line::from(typed),
            keys(&[("Enter", "keep"), ("Esc", "show all"), ("↑↓", "choose")], "  ", paint),
        ];
    }
    if state.details().is_some() {
        let all = [
            ("↑↓ PgUp PgDn Home End", "scroll"),
            ("1-5 Tab", "view"),
            ("p", "pause"),
            ("Esc", "back"),
            ("q", "quit"),
        ];
        return vec![Line::default(), keys(&all, "  ", paint)];
    }
    let mut sorts: Vec<(String, &str)> = columns(state.tab(), width)
        .into_iter()
        .map(|(_, column)| (column.key.to_string(), column.title))
        .collect();
    sorts.push(("n".into(), "name"));
    let sorts: Vec<(&str, &str)> = sorts.iter().map(|(key, title)| (key.as_str(), *title)).collect();
    let sort = |gap| {
        let mut line = keys(&sorts, gap, paint);
        line.spans.insert(0, Span::raw("sort: "));
        line
    };
    let roomy = sort("  ");
    let first = if roomy.width() <= width.into() { roomy } else { sort(" ") };
    let all = [
        ("1-5 Tab", "view"),
        ("↑↓", "choose"),
        ("Enter", "details"),
        ("/", "filter"),
        ("v", "reverse"),
        ("p", "pause"),
        ("q", "quit"),
    ];
    vec![first, keys(&all, "  ", paint)]
}

/// Keys and what they do, with `gap` between two.
fn keys(all: &[(&str, &str)], gap: &str, paint: Paint) -> Line<'static> {
    let one = |(at, (key, does)): (usize, &(&str, &str))| {
        let gap = if at == 0 { "" } else { gap };
        [
            Span::raw(gap.to_owned()),
            Span::styled((*key).to_owned(), paint.key()),
            Span::raw(format!(" {does}")),
        ]
    };
    Line::from(all.iter().enumerate().flat_map(one).collect::<Vec<_>>())
}
