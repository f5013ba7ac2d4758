//! Charts as source of LaTeX: a picture of pgfplots that a document takes in by `\input`. It has
//! the numbers, so that the document's fonts and widths apply. It knows nothing of experiments.

use std::fmt::Write as _;

use crate::experiment::{Kind, Scale};
use crate::plot::{COLOURS, Chart, Mark, Series};

/// Marks of series, in turn.
const MARKS: [&str; 5] = ["*", "square*", "triangle*", "diamond*", "pentagon*"];

/// The chart as source.
pub fn picture(chart: &Chart) -> String {
    let mut text = String::from(
        "% A chart of `stag lab`. The document needs \\usepackage{pgfplots} and \\pgfplotsset{compat=1.16}, or a later one.\n",
    );
    for line in [&chart.title, &chart.subtitle] {
        let _ = writeln!(text, "% {}", line.replace(['\n', '\r'], " "));
    }
    let colours: Vec<usize> = chart.series.iter().map(|series| series.style % COLOURS.len()).collect();
    for (at, (colour, _)) in COLOURS.iter().enumerate().filter(|(at, _)| colours.contains(at)) {
        let _ = writeln!(
            text,
            "\\definecolor{{stag{at}}}{{HTML}}{{{}}}",
            colour.trim_start_matches('#').to_ascii_uppercase()
        );
    }
    text += "\\begin{tikzpicture}\n\\begin{axis}[\n";
    for option in options(chart) {
        let _ = writeln!(text, "  {option},");
    }
    text += "]\n";
    for series in &chart.series {
        one(&mut text, chart, series);
    }
    text + "\\end{axis}\n\\end{tikzpicture}\n"
}

/// Where a place lies: its number, or how many places there are before it.
fn x(chart: &Chart, place: usize) -> Option<String> {
    let (value, _) = chart.places.get(place)?;
    if chart.is_category() {
        Some(place.to_string())
    } else {
        value.number().map(|number| number.to_string())
    }
}

fn options(chart: &Chart) -> Vec<String> {
    let longest = chart.series.iter().map(|series| series.name.chars().count()).max();
    let columns = if longest > Some(30) { 1 } else { 2 };
    let mut all = vec![
        format!("title={{{}}}", escape(&chart.title)),
        format!("xlabel={{{}}}", escape(&chart.x_title)),
        format!("ylabel={{{}}}", escape(&chart.y_title)),
        // What stands beside the axes has room, too.
        "width=0.92\\linewidth, height=0.55\\linewidth".to_owned(),
        "grid=major, legend cell align=left".to_owned(),
        format!("legend style={{at={{(0.5,-0.22)}}, anchor=north, legend columns={columns}}}"),
    ];
    match chart.x_scale {
        _ if chart.is_category() => {}
        Scale::Log2 => all.push("xmode=log, log basis x=2".to_owned()),
        Scale::Log10 => all.push("xmode=log".to_owned()),
        Scale::Linear | Scale::Category => {}
    }
    if chart.is_logarithmic() {
        all.push("ymode=log".to_owned());
    } else if chart.least() >= 0.0 {
        all.push("ymin=0".to_owned());
    }
    if chart.kind == Kind::Bars {
        all.push("ybar".to_owned());
    }
    if chart.is_category() {
        let last = chart.places.len().saturating_sub(1);
        all.push(format!("xmin=-0.5, xmax={last}.5"));
    }
    // The buckets of a distribution mean nothing to a reader.
    if chart.kind != Kind::Cdf && (chart.is_category() || chart.places.len() <= 12) {
        let at: Vec<String> = (0..chart.places.len()).filter_map(|place| x(chart, place)).collect();
        let names: Vec<String> =
            chart.places.iter().map(|(_, name)| format!("{{{}}}", escape(name))).collect();
        all.push(format!("xtick={{{}}}", at.join(",")));
        all.push(format!("xticklabels={{{}}}", names.join(",")));
        all.push("x tick label style={rotate=30, anchor=north east}".to_owned());
    }
    all
}

fn one(text: &mut String, chart: &Chart, series: &Series) {
    let colour = series.style % COLOURS.len();
    let mark = MARKS.get(series.style % MARKS.len()).copied().unwrap_or("*");
    let mut how = match chart.kind {
        Kind::Bars if series.of_paper => format!("draw=stag{colour}, fill=none, dashed"),
        Kind::Bars => format!("draw=stag{colour}, fill=stag{colour}"),
        Kind::Cdf => format!("stag{colour}, thick, no marks"),
        Kind::Lines if series.of_paper => {
            format!("stag{colour}, dashed, mark={mark}, mark options={{solid, fill=white}}")
        }
        Kind::Lines => format!("stag{colour}, mark={mark}"),
    };
    let spread = |mark: &Mark| mark.most > mark.least;
    let bars = series.marks.iter().any(spread);
    if bars {
        how += ", error bars/.cd, y dir=both, y explicit";
    }
    let _ = write!(text, "\\addplot[{how}] coordinates {{");
    let mut marks: Vec<&Mark> = series.marks.iter().collect();
    marks.sort_by_key(|mark| mark.place);
    for (at, mark) in marks.into_iter().enumerate() {
        let Some(x) = x(chart, mark.place) else { continue };
        let _ = write!(text, "{}({x},{})", if at % 4 == 0 { "\n  " } else { " " }, mark.middle);
        if bars {
            let _ = write!(text, " += (0,{}) -= (0,{})", mark.most - mark.middle, mark.middle - mark.least);
        }
    }
    text.push_str("\n};\n");
    if !series.name.is_empty() {
        let _ = writeln!(text, "\\addlegendentry{{{}}}", escape(&series.name));
    }
}

/// Text for LaTeX: what is special there is a letter.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => safe.push_str("\\textbackslash{}"),
            '~' => safe.push_str("\\textasciitilde{}"),
            '^' => safe.push_str("\\textasciicircum{}"),
            '<' => safe.push_str("\\textless{}"),
            '>' => safe.push_str("\\textgreater{}"),
            'µ' | 'μ' => safe.push_str("\\textmu{}"),
            '±' => safe.push_str("\\textpm{}"),
            // pdfLaTeX has no letters for these.
            '−' => safe.push('-'),
            '≤' => safe.push_str("\\ensuremath{\\le}"),
            '≥' => safe.push_str("\\ensuremath{\\ge}"),
            '≈' => safe.push_str("\\ensuremath{\\approx}"),
            '`' => {}
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                safe.push('\\');
                safe.push(c);
            }
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Value;

    fn chart(kind: Kind, x_scale: Scale) -> Chart {
        let mark = |place, middle, more| Mark {
            place,
            middle,
            least: middle - more,
            most: middle + more,
            disturbed: false,
        };
        let series = |name: &str, style, of_paper, more| Series {
            name: name.to_owned(),
            marks: vec![mark(1, 20.0, more), mark(0, 10.0, more)],
            style,
            of_paper,
        };
        Chart {
            title: "50 % of {a_b} & c".into(),
            subtitle: "medians".into(),
            x_title: "request size".into(),
            x_scale,
            x_bytes: true,
            y_title: "latency (µs)".into(),
            y_scale: Scale::Log10,
            kind,
            places: vec![(Value::Whole(512), "512 B".into()), (Value::Whole(4096), "4 KiB".into())],
            series: vec![series("TCP", 0, false, 1.5), series("TCP (paper)", 0, true, 0.0)],
        }
    }

    #[test]
    fn a_picture_has_its_numbers_scales_and_names() {
        let text = picture(&chart(Kind::Lines, Scale::Log2));
        for part in [
            "\\definecolor{stag0}{HTML}{0069A8}\n",
            "title={50 \\% of \\{a\\_b\\} \\& c},",
            "ylabel={latency (\\textmu{}s)},",
            "xmode=log, log basis x=2,",
            "ymode=log,",
            "xtick={512,4096},",
            "xticklabels={{512 B},{4 KiB}},",
            "\\addplot[stag0, mark=*, error bars/.cd, y dir=both, y explicit] coordinates {\n  (512,10) += (0,1.5) -= (0,1.5) (4096,20) += (0,1.5) -= (0,1.5)\n};",
            "\\addplot[stag0, dashed, mark=*, mark options={solid, fill=white}] coordinates {\n  (512,10) (4096,20)\n};\n\\addlegendentry{TCP (paper)}",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        balanced(&text);
    }

    #[test]
    fn bars_stand_at_places_and_a_distribution_has_no_marks() {
        let text = picture(&chart(Kind::Bars, Scale::Category));
        assert!(
            text.contains("ybar,")
                && text.contains("xmin=-0.5, xmax=1.5,")
                && text.contains("xtick={0,1},")
                && text.contains("(1,20)"),
            "{text}"
        );
        balanced(&text);
        let text = picture(&chart(Kind::Cdf, Scale::Log10));
        assert!(text.contains("thick, no marks") && !text.contains("xtick="), "{text}");
        balanced(&text);
    }

    #[test]
    fn an_axis_shows_values_below_zero_and_is_logarithmic_only_above() {
        let mut below = chart(Kind::Lines, Scale::Log2);
        below.series[0].marks[0].least = -3.0;
        below.places[0].0 = Value::Whole(0);
        let text = picture(&below);
        assert!(!text.contains("mode=log") && !text.contains("ymin"), "{text}");
        assert!(text.contains("xtick={0,1},") && text.contains("(1,20)"), "{text}");
    }

    /// Braces, brackets and environments close in their turn; nothing special is left.
    fn balanced(text: &str) {
        let plain = text.replace("\\{", "").replace("\\}", "").replace("\\%", "");
        let mut open = Vec::new();
        for line in plain.lines().filter(|line| !line.starts_with('%')) {
            for c in line.chars() {
                match c {
                    '{' | '[' => open.push(c),
                    '}' => assert_eq!(open.pop(), Some('{'), "{line}"),
                    ']' => assert_eq!(open.pop(), Some('['), "{line}"),
                    '%' | '#' => panic!("{line}"),
                    _ => {}
                }
            }
        }
        assert!(open.is_empty());
        for environment in ["tikzpicture", "axis"] {
            assert_eq!(text.matches(&format!("\\begin{{{environment}}}")).count(), 1);
            assert_eq!(text.matches(&format!("\\end{{{environment}}}")).count(), 1);
        }
    }
}
