//! Draws charts as SVG: lines or bars, linear or logarithmic, each point with its spread. Colours
//! are CSS variables of the page (`var(--ink)`), which [`alone`] replaces in a chart's own file. It
//! knows nothing of experiments.

mod across;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use across::Across;

use crate::experiment::{Kind, Scale};
use crate::figure::{digits, number, short};
use crate::point::Value;

#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    /// The conditions of the measurement.
    pub subtitle: String,
    /// The quantity of the x axis, with its unit.
    pub x_title: String,
    /// The scale of the x axis.
    pub x_scale: Scale,
    /// Whether the x values are bytes.
    pub x_bytes: bool,
    /// The quantity of the y axis, with its unit.
    pub y_title: String,
    /// The scale of the y axis: Linear or Log10.
    pub y_scale: Scale,
    pub kind: Kind,
    /// The places along the x axis, in order, with names.
    pub places: Vec<(Value, String)>,
    /// Lines, or bar colours.
    pub series: Vec<Series>,
}

/// One line, or one colour of bars.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend; can be empty for a single series.
    pub name: String,
    pub marks: Vec<Mark>,
    /// Which colour and mark it has; series of one style show the same thing.
    pub style: usize,
    /// Whether it is the paper's: dashed, with hollow marks.
    pub of_paper: bool,
}

/// One point of a line.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The index of the chart's place.
    pub place: usize,
    /// The median of the rounds.
    pub middle: f64,
    /// The minimum of the rounds.
    pub least: f64,
    /// The maximum of the rounds.
    pub most: f64,
    /// Whether other programs or the hypervisor disturbed it.
    pub disturbed: bool,
}

impl Chart {
    /// Whether places stand side by side on the x axis, and not where their numbers are.
    pub(crate) fn is_category(&self) -> bool {
        let logarithmic = matches!(self.x_scale, Scale::Log2 | Scale::Log10);
        let off = |(value, _): &(Value, String)| value.number().is_none_or(|n| logarithmic && n <= 0.0);
        self.x_scale == Scale::Category
            || self.kind == Kind::Bars
            || self.places.len() < 2
            || self.places.iter().any(off)
    }

    /// Whether the y axis is logarithmic, which needs values above zero.
    pub(crate) fn is_logarithmic(&self) -> bool {
        self.y_scale == Scale::Log10 && self.least() > 0.0
    }

    pub(crate) fn least(&self) -> f64 {
        self.series.iter().flat_map(|one| &one.marks).map(|mark| mark.least).fold(f64::INFINITY, f64::min)
    }
}

/// Lines of numbers: the places of all, each with its name, and the series, in a style for each.
pub(crate) fn numeric(
    lines: &[(String, Vec<(f64, f64)>)],
    name: impl Fn(f64) -> String,
) -> (Vec<(Value, String)>, Vec<Series>) {
    let mut places: Vec<f64> = lines.iter().flat_map(|(_, points)| points).map(|(x, _)| *x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mark = |(x, y): &(f64, f64)| {
        let place = places.binary_search_by(|place| place.total_cmp(x)).ok()?;
        Some(Mark { place, middle: *y, least: *y, most: *y, disturbed: false })
    };
    let one = |(style, (name, points)): (usize, &(String, Vec<_>))| Series {
        name: name.clone(),
        marks: points.iter().filter_map(mark).collect(),
        style,
        of_paper: false,
    };
    let series = lines.iter().enumerate().map(one).collect();
    (places.into_iter().map(|x| (Value::Real(x), name(x))).collect(), series)
}

const WIDTH: f64 = 660.0;
const PLOT_HEIGHT: f64 = 290.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 20.0;
const LABEL: f64 = 12.0;
/// The shares of a distribution that have a mark, percent.
const SHARES: [f64; 11] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0];
/// The mean width of a letter, relative to the font size; an upper estimate.
const LETTER: f64 = 0.6;

/// Colours on light and on dark ground, after Okabe and Ito, distinguishable with every colour
/// vision; shapes differ too.
pub(crate) const COLOURS: [(&str, &str); 8] = [
    ("#0069a8", "#5ab4f0"),
    ("#c65200", "#ff8c42"),
    ("#00805c", "#35c99a"),
    ("#a94f85", "#e79bc6"),
    ("#8a6500", "#e8bf3c"),
    ("#5b4bb5", "#a99bff"),
    ("#b3261e", "#ff8a80"),
    ("#4d5560", "#b6bfca"),
];

/// The page's CSS variables for charts: name, value on light ground, value on dark ground.
const INKS: [(&str, &str, &str); 4] = [
    ("ink", "#1b1f24", "#e6e9ee"),
    ("soft", "#59616b", "#9aa4b1"),
    ("grid", "#dfe3e8", "#333a44"),
    ("ground", "#ffffff", "#14181d"),
];

/// The CSS definitions of all variables, on light ground or on dark.
pub(crate) fn variables(dark: bool) -> String {
    let inks =
        INKS.iter().map(|(name, light, night)| format!("--{name}:{};", if dark { night } else { light }));
    let colours = COLOURS
        .iter()
        .enumerate()
        .map(|(at, (light, night))| format!("--s{at}:{};", if dark { night } else { light }));
    inks.chain(colours).collect()
}

/// The chart as a separate file, on light ground.
pub fn alone(svg: &str) -> String {
    let mut text = svg.to_owned();
    for (name, light, _) in INKS {
        text = text.replace(&format!("var(--{name})"), light);
    }
    for (at, (light, _)) in COLOURS.iter().enumerate() {
        text = text.replace(&format!("var(--s{at})"), light);
    }
    text.replacen("font-family=\"inherit\"", "font-family=\"'DejaVu Sans', Verdana, Arial, sans-serif\"", 1)
}

/// Escapes text for XML and HTML, including attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML forbids control characters, escaped or not.
            c if c.is_control() && !matches!(c, '\n' | '\t') => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

fn width(text: &str, size: f64) -> f64 {
    number(text.chars().count()) * size * LETTER
}

/// The y axis: positions of values, and grid lines.
struct Upwards {
    low: f64,
    high: f64,
    log: bool,
    top: f64,
    ticks: Vec<(f64, String)>,
    minor: Vec<f64>,
}

impl Upwards {
    fn new(chart: &Chart, top: f64) -> Self {
        let marks = || chart.series.iter().flat_map(|series| &series.marks);
        let most = marks().map(|mark| mark.most).fold(f64::NEG_INFINITY, f64::max);
        let least = chart.least();
        if chart.is_logarithmic() {
            return Self::log(least, most, top);
        }
        let (low, high) = (least.min(0.0), if most <= 0.0 && least >= 0.0 { 1.0 } else { most.max(0.0) });
        // Percentages end at 100, unless a value exceeds it.
        let percent = chart.y_title.contains('%') && low >= 0.0 && high > 40.0 && high <= 100.0;
        let step = if percent { 20.0 } else { step((high - low) / 5.0) };
        let (first, last) = ((low / step).floor(), if percent { 5.0 } else { (high / step * 1.02).ceil() });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some ten ticks")]
        let count = (last - first).clamp(1.0, 20.0) as u32;
        let ticks =
            (0..=count).map(|at| (first + f64::from(at)) * step).map(|value| (value, short(value))).collect();
        Self {
            low: first * step,
            high: (first + f64::from(count)) * step,
            log: false,
            top,
            ticks,
            minor: Vec::new(),
        }
    }

    fn log(least: f64, most: f64, top: f64) -> Self {
        let (mut low, mut high) = (least.log10() - 0.06, most.log10() + 0.06);
        if high - low < 0.5 {
            let middle = f64::midpoint(low, high);
            (low, high) = (middle - 0.25, middle + 0.25);
        }
        let wide = high - low > 2.5;
        let (mut ticks, mut minor) = (Vec::new(), Vec::new());
        #[expect(clippy::cast_possible_truncation, reason = "exponents of ten")]
        for exponent in (low.floor() as i32)..=(high.ceil() as i32) {
            for times in 1..10_u32 {
                let value = f64::from(times) * 10_f64.powi(exponent);
                if !(low..=high).contains(&value.log10()) {
                    continue;
                }
                if times == 1 || (!wide && matches!(times, 2 | 5)) {
                    ticks.push((value, short(value)));
                } else {
                    minor.push(value);
                }
            }
        }
        Self { low, high, log: true, top, ticks, minor }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = (value - self.low) / (self.high - self.low);
        self.top + PLOT_HEIGHT * (1.0 - part.clamp(0.0, 1.0))
    }
}

/// The least of 1, 2 or 5 times a power of ten that is at least `least`.
fn step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// The layout of the legend.
struct Legend {
    rows: Vec<Vec<usize>>,
}

impl Legend {
    fn new(chart: &Chart) -> Self {
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut used = f64::INFINITY;
        for (at, series) in chart.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty()) {
            let wide = entry(series);
            if used + wide > WIDTH - LEFT - RIGHT {
                rows.push(Vec::new());
                used = 0.0;
            }
            used += wide;
            if let Some(row) = rows.last_mut() {
                row.push(at);
            }
        }
        Self { rows }
    }
}

fn entry(series: &Series) -> f64 {
    30.0 + width(&series.name, LABEL) + 10.0
}

/// The chart as SVG, with the page's CSS variables for colours.
pub fn draw(chart: &Chart) -> String {
    let legend = Legend::new(chart);
    let mut out = String::new();
    let title = wrap(&chart.title, 15.0);
    let subtitle = wrap(&chart.subtitle, 11.0);
    let head = 14.0 + 19.0 * number(title.len()) + 15.0 * number(subtitle.len());
    let top = head + 20.0 * number(legend.rows.len()) + 14.0;
    let upwards = Upwards::new(chart, top);
    let across = Across::new(chart);
    let bottom = top + PLOT_HEIGHT;
    let height = bottom + across.height() + 26.0;
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         role=\"img\" font-family=\"inherit\"><title>{}</title><rect width=\"100%\" height=\"100%\" fill=\"var(--ground)\"/>",
        escape(&chart.title.replace('`', ""))
    );
    let mut y = 24.0;
    for line in &title {
        text(&mut out, LEFT, y, 15.0, "start", "var(--ink)", line, " font-weight=\"600\"");
        y += 19.0;
    }
    for line in &subtitle {
        text(&mut out, LEFT, y, 11.0, "start", "var(--soft)", line, "");
        y += 15.0;
    }
    draw_legend(&mut out, chart, &legend, head);
    for value in &upwards.minor {
        rule(&mut out, upwards.at(*value), 0.5);
    }
    for (value, name) in &upwards.ticks {
        rule(&mut out, upwards.at(*value), 1.0);
        text(&mut out, LEFT - 8.0, upwards.at(*value) + 4.0, LABEL, "end", "var(--soft)", name, "");
    }
    let base = if upwards.log { bottom } else { upwards.at(0.0) };
    let right = WIDTH - RIGHT;
    let _ = write!(out, "<path d=\"M{LEFT} {base:.1}H{right}\" stroke=\"var(--soft)\" fill=\"none\"/>");
    for (x, name) in &across.ticks {
        if let Some(degrees) = across.turned {
            let turn = format!(" transform=\"rotate(-{degrees} {x:.1} {:.1})\"", bottom + 16.0);
            text(&mut out, *x, bottom + 16.0, LABEL, "end", "var(--soft)", name, &turn);
        } else {
            let _ = write!(out, "<path d=\"M{x:.1} {bottom:.1}v4\" stroke=\"var(--soft)\"/>");
            text(&mut out, *x, bottom + 18.0, LABEL, "middle", "var(--soft)", name, "");
        }
    }
    let middle = f64::midpoint(LEFT, right);
    text(&mut out, middle, height - 10.0, 12.5, "middle", "var(--ink)", &chart.x_title, "");
    let middle = f64::midpoint(top, bottom);
    let turn = format!(" transform=\"rotate(-90 18 {middle:.1})\"");
    text(&mut out, 18.0, middle, 12.5, "middle", "var(--ink)", &chart.y_title, &turn);
    match chart.kind {
        Kind::Lines | Kind::Cdf => lines(&mut out, chart, &upwards, &across),
        Kind::Bars => bars(&mut out, chart, &upwards, &across),
    }
    out.push_str("</svg>");
    out
}

fn draw_legend(out: &mut String, chart: &Chart, legend: &Legend, head: f64) {
    for (row, entries) in legend.rows.iter().enumerate() {
        let y = head + 12.0 + 20.0 * number(row);
        let mut x = LEFT;
        for series in entries.iter().filter_map(|at| chart.series.get(*at)) {
            let colour = colour(series.style);
            if chart.kind == Kind::Bars {
                let _ = write!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"22\" height=\"10\" {}/>",
                    y - 9.0,
                    fill(series, "")
                );
            } else {
                let dash = dash(series);
                let _ = write!(
                    out,
                    "<path d=\"M{x:.1} {:.1}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                    y - 4.0
                );
                mark(out, series.style, x + 12.0, y - 4.0, series.of_paper, "");
            }
            text(out, x + 30.0, y, LABEL, "start", "var(--ink)", &series.name, "");
            x += entry(series);
        }
    }
}

fn colour(at: usize) -> String {
    format!("var(--s{})", at % COLOURS.len())
}

/// The paint of a bar.
fn fill(series: &Series, more: &str) -> String {
    let colour = colour(series.style);
    match series.of_paper {
        true => format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" stroke-dasharray=\"4 3\""),
        false => format!("fill=\"{colour}\"{more}"),
    }
}

/// The dash pattern of a series: the paper's are dashed, and those that reuse a colour.
fn dash(series: &Series) -> &'static str {
    match series.style / COLOURS.len() {
        _ if series.of_paper => " stroke-dasharray=\"4 3\"",
        0 => "",
        1 => " stroke-dasharray=\"6 4\"",
        _ => " stroke-dasharray=\"2 3\"",
    }
}

fn rule(out: &mut String, y: f64, thick: f64) {
    let right = WIDTH - RIGHT;
    let _ =
        write!(out, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"var(--grid)\" stroke-width=\"{thick}\"/>");
}

#[expect(clippy::too_many_arguments, reason = "what a text of SVG is made of")]
fn text(out: &mut String, x: f64, y: f64, size: f64, anchor: &str, fill: &str, words: &str, more: &str) {
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{fill}\"{more}>{}</text>",
        escape(words)
    );
}

/// Wraps text into lines no wider than the plot.
fn wrap(words: &str, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    // SVG text has no code style.
    for word in words.replace('`', "").split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(word, size) < WIDTH - LEFT - RIGHT => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The marker of series `at`; `hollow` for disturbed points.
fn mark(out: &mut String, at: usize, x: f64, y: f64, hollow: bool, title: &str) {
    let (colour, fill) = (colour(at), if hollow { "var(--ground)".to_owned() } else { colour(at) });
    let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    let style = format!("fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\"");
    let polygon = |points: &[(f64, f64)]| {
        points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect::<Vec<_>>().join(" ")
    };
    let _ = match at % 5 {
        0 => write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" {style}>{title}</circle>"),
        1 => write!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7.4\" height=\"7.4\" {style}>{title}</rect>",
            x - 3.7,
            y - 3.7
        ),
        shape => {
            let points = match shape {
                2 => polygon(&[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)]),
                3 => polygon(&[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)]),
                _ => polygon(&[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)]),
            };
            write!(out, "<polygon points=\"{points}\" {style}>{title}</polygon>")
        }
    };
}

fn told(chart: &Chart, series: &Series, mark: &Mark) -> String {
    let place = chart.places.get(mark.place).map(|(_, name)| name.as_str()).unwrap_or_default();
    let name = if series.name.is_empty() { String::new() } else { format!("{}, ", series.name) };
    if chart.kind == Kind::Cdf {
        return format!("{name}{} % within {place}", digits(mark.middle, 5));
    }
    let spread = if mark.most > mark.least {
        format!(" ({} to {})", short(mark.least), short(mark.most))
    } else {
        String::new()
    };
    let disturbed = if mark.disturbed { "; disturbed" } else { "" };
    format!("{name}{place}: {}{spread}{disturbed}", short(mark.middle))
}

fn whisker(out: &mut String, x: f64, low: f64, high: f64, colour: &str) {
    if low - high > 0.8 {
        let _ = write!(
            out,
            "<path d=\"M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h7M{:.1} {high:.1}h7\" stroke=\"{colour}\" stroke-width=\"1.3\" fill=\"none\"/>",
            x - 3.5,
            x - 3.5
        );
    }
}

fn lines(out: &mut String, chart: &Chart, upwards: &Upwards, across: &Across) {
    for series in &chart.series {
        let colour = colour(series.style);
        let mut marks: Vec<(f64, &Mark)> = series
            .marks
            .iter()
            .filter_map(|mark| across.places.get(mark.place).map(|x| (*x, mark)))
            .collect();
        marks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            marks.iter().map(|(x, mark)| format!("{x:.1},{:.1}", upwards.at(mark.middle))).collect();
        let dash = dash(series);
        // A line needs two points.
        if path.len() > 1 {
            let _ = write!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}/>",
                path.join(" ")
            );
        }
        if chart.kind == Kind::Cdf {
            // Its line has hundreds of points.
            let first = |share: &f64| marks.iter().position(|(_, mark)| mark.middle >= *share);
            let shown: BTreeSet<usize> = SHARES.iter().filter_map(first).collect();
            marks = shown.into_iter().filter_map(|at| marks.get(at).copied()).collect();
        }
        for (x, one) in marks {
            whisker(out, x, upwards.at(one.least), upwards.at(one.most), &colour);
            let hollow = one.disturbed || series.of_paper;
            mark(out, series.style, x, upwards.at(one.middle), hollow, &told(chart, series, one));
        }
    }
}

fn bars(out: &mut String, chart: &Chart, upwards: &Upwards, across: &Across) {
    let count = number(chart.series.len().max(1));
    let group = across.band * 0.78;
    let wide = (group / count).min(64.0);
    let named = chart.series.len() * chart.places.len() <= 14;
    for (at, series) in chart.series.iter().enumerate() {
        for one in &series.marks {
            let Some(middle) = across.places.get(one.place) else { continue };
            let x = middle - wide * count / 2.0 + wide * number(at);
            let (y, base) = (upwards.at(one.middle), upwards.at(0.0));
            let opacity = if one.disturbed { " fill-opacity=\"0.55\"" } else { "" };
            let _ = write!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" {}><title>{}</title></rect>",
                x + 1.0,
                y.min(base),
                wide - 2.0,
                (base - y).abs(),
                fill(series, opacity),
                escape(&told(chart, series, one))
            );
            whisker(out, x + wide / 2.0, upwards.at(one.least), upwards.at(one.most), "var(--ink)");
            if named {
                let top = upwards.at(one.most.max(one.middle)).min(base);
                text(out, x + wide / 2.0, top - 5.0, 10.5, "middle", "var(--ink)", &short(one.middle), "");
            }
        }
    }
}
