//! Whole runs of the lab with a measure that computes its figures: recording, resuming, judging,
//! reporting and comparing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lab::context::Pinning;
use lab::experiment::Experiment;
use lab::finding::{Verdict, judge};
use lab::library::Source;
use lab::machine::Machine;
use lab::measure::{Error, Measure};
use lab::progress::Progress;
use lab::record::{Outcome, Record};
use lab::results::{Results, read_all};
use lab::run::{self, Options, Summary};
use lab::{Context, Point, Role, Sample, Stop};

const TEXT: &str = r#"
format = 1
name = "made-up"
title = "Made up"
measure = "bench"
rounds = 3

[[axis]]
name = "transport"
values = ["tcp", "iser"]
labels = { iser = "iSCSI over RDMA", tcp = "iSCSI over TCP" }

[[axis]]
name = "block"
title = "Request size"
unit = "B"
values = [512, "4k", "64k"]
quick = ["4k"]

[[plot]]
name = "iops"
title = "I/Os a second <by> size"
quantity = "iops"
x = "block"
series = ["transport"]
y-scale = "log10"

[[plot]]
name = "bars"
title = "Latency"
quantity = "p50_us"
x = "transport"
kind = "bars"
panel = "block"

[[table]]
title = "Both"
rows = ["block"]
columns = ["transport"]
quantity = ["iops", "p50_us"]

[[finding]]
claim = "RDMA answers more"
quantity = "iops"
of = { transport = "iser" }
to = { transport = "tcp" }
at-least = 1.5

[[finding]]
claim = "RDMA answers three times as much"
class = "construction"
quantity = "iops"
of = { transport = "iser" }
to = { transport = "tcp" }
at-least = 3

[[finding]]
claim = "RDMA answers twice as much or more"
quantity = "iops"
of = { transport = "iser" }
to = { transport = "tcp" }
at-least = 2

[[finding]]
claim = "Small requests take at most 100 µs"
quantity = "p50_us"
of = { block = 512 }
at-most = 100

[[finding]]
claim = "What RDMA brings does not depend on the size"
quantity = "iops"
of = { transport = "iser" }
to = { transport = "tcp" }
against = { block = 512 }
at-least = 0.7
at-most = 1.4
over = "mean"
"#;

type Function = Rc<dyn Fn(&Point, &Context) -> Result<f64, Error>>;

/// A measure that calls a function and records its calls.
struct Made {
    figure: Function,
    asked: Rc<RefCell<Vec<(String, u32)>>>,
}

impl Measure for Made {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        self.asked.borrow_mut().push((point.key(), context.round));
        let iops = (self.figure)(point, context)?;
        let mut sample = Sample::new();
        sample.rate("iops", iops, "IOPS");
        sample.cost("p50_us", 1e6 / iops, "µs");
        sample.note("made up");
        Ok(sample)
    }
}

/// RDMA is twice as fast, with 4 % of noise, and the rounds differ in speed.
fn usual(point: &Point, context: &Context) -> Result<f64, Error> {
    let iser = point.text("transport")?.unwrap_or_default() == "iser";
    let block = point.real("block")?.unwrap_or(1.0);
    let seed = context.seed as usize;
    let noise = [1.0, 1.04, 0.96][(seed + usize::from(iser)) % 3] * [1.0, 1.2, 0.9][seed % 3];
    Ok(noise * if iser { 2.0 } else { 1.0 } * 20e6 / (block + 1000.0))
}

#[derive(Default)]
struct Quiet {
    records: Vec<Record>,
    left: Vec<Duration>,
}

impl Progress for Quiet {
    fn begins(&mut self, _: &Point, _: u32, done: usize, total: usize, left: Duration) {
        assert!(done < total);
        self.left.push(left);
    }

    fn ended(&mut self, record: &Record) {
        self.records.push(record.clone());
    }

    fn say(&mut self, _: &str) {}
}

struct Bench {
    folder: tempfile::TempDir,
    source: Source,
    asked: Rc<RefCell<Vec<(String, u32)>>>,
    stop: Stop,
    progress: Quiet,
}

impl Bench {
    fn new(text: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            source: Source { experiment: Experiment::read(text).unwrap(), text: text.to_owned() },
            asked: Rc::default(),
            stop: Stop::default(),
            progress: Quiet::default(),
        }
    }

    fn options(&self) -> Options {
        Options {
            out: self.folder.path().to_owned(),
            quick: false,
            only: Vec::new(),
            again: false,
            retry: false,
            rounds: None,
            seed: 1,
            stag: std::env::current_exe().unwrap(),
            pinning: Pinning::default(),
            realtime: false,
            within: None,
            wait: Duration::ZERO,
        }
    }

    fn run(
        &mut self,
        options: &Options,
        figure: impl Fn(&Point, &Context) -> Result<f64, Error> + 'static,
    ) -> Result<Summary, run::Error> {
        self.asked.borrow_mut().clear();
        let figure: Function = Rc::new(figure);
        let asked = Rc::clone(&self.asked);
        let make = move |_: &Experiment| -> Result<Box<dyn Measure>, Error> {
            Ok(Box::new(Made { figure: Rc::clone(&figure), asked: Rc::clone(&asked) }))
        };
        let machine = Machine { cpu: "a processor".into(), ..Machine::default() };
        run::run(std::slice::from_ref(&self.source), options, machine, &make, &self.stop, &mut self.progress)
    }

    fn results(&self) -> Results {
        read_all(self.folder.path()).unwrap().remove(0)
    }
}

#[test]
fn rounds_go_over_all_points_and_every_other_one_backwards() {
    let mut bench = Bench::new(TEXT);
    let summary = bench.run(&bench.options(), usual).unwrap();
    assert_eq!(summary.experiments[0].measured, 18);
    let asked = bench.asked.borrow().clone();
    assert_eq!(asked[0], ("transport=tcp,block=512".to_owned(), 1));
    assert_eq!(asked[5], ("transport=iser,block=65536".to_owned(), 1));
    assert_eq!(asked[6], ("transport=iser,block=65536".to_owned(), 2));
    assert_eq!(asked[11], ("transport=tcp,block=512".to_owned(), 2));
    assert_eq!(asked[12].1, 3);
    // Each round has its own seed, shared by all of its points.
    let seeds: BTreeMap<u32, Vec<u64>> =
        bench.progress.records.iter().fold(BTreeMap::new(), |mut seeds, record| {
            seeds.entry(record.round).or_insert_with(Vec::new).push(record.seed);
            seeds
        });
    assert_eq!(seeds, BTreeMap::from([(1, vec![1; 6]), (2, vec![2; 6]), (3, vec![3; 6])]));
    // The remaining time first comes from the file, then from measured times. For the last point it
    // is less than in the file, even if the machine stalled.
    assert_eq!(bench.progress.left[0], Duration::from_secs(18 * 3));
    assert!(bench.progress.left[17] < Duration::from_secs(3));
}

#[test]
fn a_point_may_say_that_it_needs_fewer_rounds() {
    let text = TEXT.replace("labels = { iser =", "settings.iser = { rounds = 2 }\nlabels = { iser =");
    let mut bench = Bench::new(&text);
    assert_eq!((bench.source.experiment.runs(false), bench.source.experiment.runs(true)), (15, 4));
    assert_eq!(bench.run(&bench.options(), usual).unwrap().experiments[0].measured, 15);
    let last: Vec<String> =
        bench.asked.borrow().iter().filter(|(_, round)| *round == 3).map(|(key, _)| key.clone()).collect();
    assert_eq!(last, ["transport=tcp,block=512", "transport=tcp,block=4096", "transport=tcp,block=65536"]);
    // Ratios use the rounds that both points have.
    let judged = judge(&bench.results());
    assert!(judged[0].points.iter().all(|point| point.rounds.len() == 2), "{:?}", judged[0].points);
    // An explicit number of rounds overrides the limit.
    let more = Options { rounds: Some(3), ..bench.options() };
    assert_eq!(bench.run(&more, usual).unwrap().experiments[0].measured, 3);
    let wrong = Experiment::read(&text.replace("rounds = 2 }", "rounds = 0 }")).unwrap_err().to_string();
    assert!(wrong.contains("the setting `rounds` should be"), "{wrong}");
}

#[test]
fn a_run_that_was_interrupted_goes_on_where_it_was() {
    let mut bench = Bench::new(TEXT);
    let stop = bench.stop.clone();
    let count = Cell::new(0);
    let summary = bench
        .run(&bench.options(), move |point, context| {
            count.set(count.get() + 1);
            if count.get() == 5 {
                stop.ask();
                return Err(context.check().unwrap_err());
            }
            usual(point, context)
        })
        .unwrap();
    assert!(summary.interrupted);
    assert_eq!(bench.results().records.len(), 4);

    bench.stop = Stop::default();
    let summary = bench.run(&bench.options(), usual).unwrap();
    assert_eq!((summary.experiments[0].before, summary.experiments[0].measured), (4, 14));
    assert_eq!(bench.asked.borrow()[0], ("transport=iser,block=4096".to_owned(), 1));
    // Recorded points are measured again on request only.
    let summary = bench.run(&bench.options(), usual).unwrap();
    assert_eq!((summary.experiments[0].before, summary.experiments[0].measured), (18, 0));
    let again = Options { again: true, ..bench.options() };
    assert_eq!(bench.run(&again, usual).unwrap().experiments[0].measured, 18);
    // More rounds continue the run as well.
    let more = Options { rounds: Some(4), ..bench.options() };
    assert_eq!(bench.run(&more, usual).unwrap().experiments[0].measured, 6);
}

/// The run continues, and only --retry measures the point again.
#[test]
fn a_failed_point_is_recorded_and_skipped_after_two_rounds() {
    let mut bench = Bench::new(TEXT);
    let broken = |point: &Point, context: &Context| match point.key().as_str() {
        "transport=tcp,block=4096" => Err(Error::Failed("the target died".into())),
        "transport=iser,block=512" => Err(Error::Missing("no such peer is installed".into())),
        _ => usual(point, context),
    };
    let summary = bench.run(&bench.options(), broken).unwrap();
    let one = &summary.experiments[0];
    assert_eq!((one.measured, one.failed, one.missing, one.left_out), (12, 2, 1, 3));
    let results = bench.results();
    let whys: Vec<String> = results
        .records
        .iter()
        .filter_map(|record| match &record.outcome {
            Outcome::Measured(_) => None,
            Outcome::Missing(why) | Outcome::Failed(why) => Some(why.clone()),
        })
        .collect();
    assert_eq!(whys, ["the target died", "no such peer is installed", "the target died"]);
    // Only the logs of failed points are kept.
    let logs = fs::read_dir(bench.folder.path().join("made-up/logs")).unwrap();
    let mut names: Vec<_> = logs.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["transport=tcp,block=4096-r1", "transport=tcp,block=4096-r2"]);

    let summary = bench.run(&bench.options(), usual).unwrap();
    assert_eq!((summary.experiments[0].measured, summary.experiments[0].left_out), (0, 3));
    let retry = Options { retry: true, ..bench.options() };
    let summary = bench.run(&retry, usual).unwrap();
    assert_eq!((summary.experiments[0].measured, summary.experiments[0].before), (6, 12));
    assert!(bench.results().records.iter().all(|record| record.sample().is_some()));
}

#[test]
fn a_point_that_failed_in_one_round_is_judged_by_the_others() {
    let mut bench = Bench::new(TEXT);
    let once = |point: &Point, context: &Context| match (point.key().as_str(), context.round) {
        ("transport=tcp,block=4096", 1) => Err(Error::Failed("the target was late".into())),
        _ => usual(point, context),
    };
    let summary = bench.run(&bench.options(), once).unwrap();
    assert_eq!((summary.experiments[0].measured, summary.experiments[0].failed), (17, 1));
    let judged = judge(&bench.results());
    assert_eq!((judged[0].verdict, judged[0].points.len()), (Verdict::Holds, 3));
    let rounds: Vec<usize> = judged[0].points.iter().map(|point| point.rounds.len()).collect();
    assert_eq!(rounds, [3, 2, 3]);
}

#[test]
fn results_of_another_run_are_not_mixed_in() {
    let mut bench = Bench::new(TEXT);
    bench.run(&bench.options(), usual).unwrap();
    let quick = Options { quick: true, ..bench.options() };
    let error = bench.run(&quick, usual).unwrap_err().to_string();
    assert!(error.contains("--quick is not the same") && error.contains("--again"), "{error}");
    let seed = Options { seed: 7, ..bench.options() };
    assert!(bench.run(&seed, usual).unwrap_err().to_string().contains("--seed"));
    let text = TEXT.replace("Made up", "Made up otherwise");
    bench.source = Source { experiment: Experiment::read(&text).unwrap(), text };
    assert!(bench.run(&bench.options(), usual).unwrap_err().to_string().contains("the experiment's file"));
    // Replaces the results on request.
    let again = Options { again: true, quick: true, ..bench.options() };
    assert_eq!(bench.run(&again, usual).unwrap().experiments[0].measured, 4);
    assert!(bench.results().info.quick);
}

#[test]
fn two_runs_do_not_write_into_one_folder() {
    let mut bench = Bench::new(TEXT);
    let inner = RefCell::new(Bench::new(TEXT));
    let options = bench.options();
    let same = options.clone();
    let said = Rc::new(RefCell::new(String::new()));
    let saying = Rc::clone(&said);
    bench
        .run(&options, move |point, context| {
            if saying.borrow().is_empty() {
                *saying.borrow_mut() = inner.borrow_mut().run(&same, usual).unwrap_err().to_string();
            }
            usual(point, context)
        })
        .unwrap();
    assert!(said.borrow().contains("another `stag lab run`"), "{}", said.borrow());
}

#[test]
fn only_some_points_are_run_where_that_is_asked_for() {
    let mut bench = Bench::new(TEXT);
    let only = |axis: &str, text: &str| vec![(axis.to_owned(), vec![lab::Value::read(text)])];
    let options = Options { only: only("block", "4k"), rounds: Some(1), ..bench.options() };
    bench.run(&options, usual).unwrap();
    let keys: Vec<String> = bench.asked.borrow().iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(keys, ["transport=tcp,block=4096", "transport=iser,block=4096"]);
    let sources = [bench.source.clone()];
    assert!(run::check_only(&sources, &options.only).is_ok());
    let wrong = run::check_only(&sources, &only("depth", "1")).unwrap_err().to_string();
    assert!(wrong.contains("no axis `depth`; there are: block, transport"), "{wrong}");
    let wrong = run::check_only(&sources, &only("block", "8k")).unwrap_err().to_string();
    assert!(wrong.contains("never 8192; it is one of: 512, 4096, 65536"), "{wrong}");
}

#[test]
fn each_verdict_has_a_sentence_with_its_numbers() {
    let mut bench = Bench::new(TEXT);
    bench.run(&bench.options(), usual).unwrap();
    let judged = judge(&bench.results());
    let verdicts: Vec<Verdict> = judged.iter().map(|judged| judged.verdict).collect();
    use Verdict::{CannotBeTold, DoesNotHold, Holds};
    assert_eq!(verdicts, [Holds, DoesNotHold, CannotBeTold, Holds, Holds]);
    let sentence = &judged[0].sentence;
    assert!(
        sentence.starts_with("iSCSI over RDMA: I/Os a second is 2.08 (")
            && sentence.contains("times that of iSCSI over TCP at 3 points"),
        "{sentence}"
    );
    assert!(
        judged[1].sentence.contains("3 or more is claimed; it does not hold at all of them"),
        "{}",
        judged[1].sentence
    );
    assert!(
        judged[2].sentence.contains("the spread reaches over the limit at all of them"),
        "{}",
        judged[2].sentence
    );
    assert!(judged[3].sentence.contains("µs") && judged[3].points.len() == 2, "{:?}", judged[3]);
    assert_eq!(judged[4].points.len(), 2, "the point that all are compared with is none of them");
    for judged in &judged {
        assert!(!judged.sentence.contains("NaN") && !judged.sentence.contains("inf"), "{}", judged.sentence);
    }
}

#[test]
fn of_what_was_not_measured_nothing_is_claimed() {
    let mut bench = Bench::new(TEXT);
    let options =
        Options { only: vec![("transport".into(), vec![lab::Value::read("tcp")])], ..bench.options() };
    bench.run(&options, usual).unwrap();
    let judged = judge(&bench.results());
    assert_eq!(judged[0].verdict, Verdict::NotMeasured);
    assert_eq!(judged[3].verdict, Verdict::Holds);
    // A selection with figures on one side only.
    bench.source.text.clear();
    assert!(judged[0].sentence.contains("no such point was measured"), "{}", judged[0].sentence);
}

#[test]
fn a_claim_about_every_point_does_not_hold_by_what_failed() {
    let with = |bad: &'static [&'static str], error: fn() -> Error| {
        let mut bench = Bench::new(TEXT);
        let made = move |point: &Point, context: &Context| match bad.contains(&point.key().as_str()) {
            true => Err(error()),
            false => usual(point, context),
        };
        bench.run(&bench.options(), made).unwrap();
        judge(&bench.results())
    };
    let broken = || Error::Failed("broken".into());
    let judged = with(&["transport=iser,block=65536"], broken);
    assert_eq!(judged[0].verdict, Verdict::CannotBeTold);
    assert!(judged[0].sentence.contains("1 more failed and is not in this."), "{}", judged[0].sentence);
    assert_eq!((judged[1].verdict, judged[3].verdict), (Verdict::DoesNotHold, Verdict::Holds));
    // The compared points failed.
    let judged = with(&["transport=tcp,block=65536", "transport=tcp,block=4096"], broken);
    assert_eq!(judged[0].verdict, Verdict::CannotBeTold);
    assert!(judged[0].sentence.contains("2 more failed and are not in this."), "{}", judged[0].sentence);
    // All points failed.
    let iser = ["transport=iser,block=512", "transport=iser,block=4096", "transport=iser,block=65536"];
    let judged = with(Box::leak(Box::new(iser)), broken);
    assert_eq!(judged[0].verdict, Verdict::NotMeasured);
    assert!(judged[0].sentence.contains("it failed at all 3 points"), "{}", judged[0].sentence);
    // A missing requirement is not a failure.
    let judged = with(&["transport=iser,block=65536"], || Error::Missing("no peer".into()));
    assert_eq!(judged[0].verdict, Verdict::Holds);
    assert!(judged[0].sentence.contains("1 more could not be measured here."), "{}", judged[0].sentence);
}

#[test]
fn a_report_is_one_page_without_other_files_and_every_chart_is_svg() {
    let mut bench = Bench::new(TEXT);
    bench
        .run(&bench.options(), |point, context| match point.key().as_str() {
            "transport=tcp,block=65536" => Err(Error::Failed("<broken> & \"odd\"".into())),
            _ => usual(point, context),
        })
        .unwrap();
    let out = bench.folder.path().join("report");
    let written = lab::report::write(&[bench.results()], &out, true).unwrap();
    assert_eq!(written.charts, 4, "one of lines, one of bars for each size");
    let page = fs::read_to_string(&written.page).unwrap();
    for outside in ["http://", "https://", "src=", "url(", "@import", "<script", "<link"] {
        let inside = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!inside.contains(outside), "the page has {outside}");
    }
    for tag in ["tr", "table", "ul", "li", "section", "figure", "svg", "details", "p", "div"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "<{tag}>");
    }
    assert!(page.contains("&lt;broken&gt; &amp; &quot;odd&quot;") && !page.contains("<broken>"));
    assert!(page.contains("I/Os a second &lt;by&gt; size"));
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(!page.contains("NaN") && !page.contains(">inf"));
    let folder = out.join("made-up");
    for name in ["iops", "bars-512", "bars-4096", "bars-65536"] {
        let svg = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>") && !svg.contains("var("), "{name}");
        let pgf = fs::read_to_string(folder.join(format!("{name}.pgf"))).unwrap();
        assert!(
            pgf.contains("\\begin{axis}")
                && pgf.contains("\\addlegendentry{iSCSI over TCP}") == (name == "iops")
        );
        // A point says on hover what it is.
        let titles = svg.matches("<title>").count() - 1;
        assert_eq!(
            titles,
            if name == "iops" {
                5
            } else if name == "bars-65536" {
                1
            } else {
                2
            },
            "{name}"
        );
        if written.no_png.is_none() {
            let png = fs::read(folder.join(format!("{name}.png"))).unwrap();
            assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        }
    }
    assert!(written.pngs == 4 || written.no_png.is_some());
    let csv = fs::read_to_string(folder.join("samples.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 17, "a head, 15 measured, and one that failed twice");
    assert!(
        csv.starts_with(
            "round,seed,transport,block,outcome,iops,p50_us,seconds,others_percent,stolen_percent,disturbed,retaken\r\n"
        ),
        "{csv}"
    );
    assert!(csv.contains("\"failed: <broken> & \"\"odd\"\"\""), "{csv}");
    let markdown = fs::read_to_string(out.join("results.md")).unwrap();
    assert!(
        markdown.contains(
            "| RDMA answers more | our own mark | cannot be told | iSCSI over RDMA: I/Os a second is"
        ),
        "{markdown}"
    );
    assert!(markdown.contains("| Request size | iSCSI over TCP: I/Os a second, IOPS |"), "{markdown}");
    assert!(
        markdown.contains("failed: \\<broken> & \"odd\" (transport=tcp,block=65536, round 1)"),
        "{markdown}"
    );
    for table in markdown.split("\n\n").filter(|part| part.starts_with('|')) {
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        assert!(table.lines().all(|line| cells(line) == cells(table) / table.lines().count()), "{table}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
    assert_eq!(json["experiments"][0]["points"].as_array().unwrap().len(), 5);
    assert_eq!(json["experiments"][0]["points"][0]["figures"]["iops"]["rounds"].as_array().unwrap().len(), 3);
    // A compared point failed.
    assert_eq!(json["experiments"][0]["findings"][0]["verdict"], "cannot-be-told");
    // The overview counts each class by itself.
    let findings = &json["experiments"][0]["findings"];
    assert_eq!((&findings[0]["class"], &findings[1]["class"]), (&"ours".into(), &"construction".into()));
    assert!(markdown.contains("| `made-up` | by construction | – | – | 1 | – | – | 15 | 2 |"), "{markdown}");
    assert!(markdown.contains("| `made-up` | our own mark | 1 | – | – | 3 | – |  |  |"), "{markdown}");
    assert!(
        page.contains("<td data-h=\"Claims\">by construction</td>") && page.contains("(our own mark)</span>")
    );
}

#[test]
fn points_that_differ_on_an_axis_that_a_plot_does_not_name_are_other_lines() {
    let plot = "[[plot]]\nname = \"open\"\ntitle = \"Open\"\nquantity = \"iops\"\nx = \"block\"\n";
    let mut bench = Bench::new(&format!("{TEXT}\n{plot}"));
    bench.run(&bench.options(), usual).unwrap();
    let out = bench.folder.path().join("report");
    lab::report::write(&[bench.results()], &out, false).unwrap();
    let svg = fs::read_to_string(out.join("made-up/open.svg")).unwrap();
    for line in ["iSCSI over TCP", "iSCSI over RDMA"] {
        assert_eq!(svg.matches(&format!("<title>{line}, ")).count(), 3, "{line}: {svg}");
    }
}

/// Prints what `stag bench` does: latencies around 100 µs over TCP, and 50 µs over iSER.
struct Printed;

impl Measure for Printed {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let base = if point.text("transport")?.as_deref() == Some("iser") { 50 } else { 100 };
        let mut latency = load::Latency::default();
        (0..1000).for_each(|n| latency.record(1000 * (base + n % 50) + u64::from(context.round)));
        let us = |part| latency.quantile_us(part);
        let mut sample = Sample::new();
        sample.rate("iops", 1000.0, "IOPS");
        sample.rate("mb_s", 4.096, "MB/s");
        for (name, value) in [
            ("mean", latency.mean_us()),
            ("p50", us(0.5)),
            ("p99", us(0.99)),
            ("p999", us(0.999)),
            ("max", us(1.0)),
        ] {
            sample.cost(&format!("{name}_us"), value, "µs");
        }
        sample.raw = serde_json::json!({
            "errors": 0, "ios": 1000, "iops": 1000.0, "mb_s": 4.096, "histogram_ns": latency.distribution().to_string(),
            "lat_us": { "mean": latency.mean_us(), "p50": us(0.5), "p99": us(0.99), "p999": us(0.999), "max": us(1.0) },
            "intervals": [{ "ios": 600 }, { "ios": 400 }],
        });
        Ok(sample)
    }
}

#[test]
fn latencies_of_all_rounds_are_drawn_by_their_share_and_verified() {
    let plot = "[[plot]]\nname = \"latency\"\ntitle = \"Latencies\"\nkind = \"cdf\"\nseries = [\"transport\"]\npanel = \"block\"\n";
    let mut bench = Bench::new(&format!("{TEXT}\n{plot}"));
    let make = |_: &Experiment| -> Result<Box<dyn Measure>, Error> { Ok(Box::new(Printed)) };
    let (source, options) = (bench.source.clone(), bench.options());
    run::run(&[source], &options, Machine::default(), &make, &bench.stop, &mut bench.progress).unwrap();
    let found = bench.results().found();
    assert!(found.iter().all(|found| found.distribution.count() == 3000), "three rounds of a thousand");
    let out = bench.folder.path().join("report");
    lab::report::write(&[bench.results()], &out, false).unwrap();
    let svg = fs::read_to_string(out.join("made-up/latency-512.svg")).unwrap();
    // A mark says its share, and no bucket of latencies is wider than 6 %.
    let within = |name: &str| {
        let words = format!("<title>{name}, ");
        let told = svg.split(words.as_str()).skip(1).filter_map(|text| text.split_once(" µs</title>"));
        let marks = told.filter_map(|(text, _)| text.split_once(" % within "));
        let mut marks = marks.map(|(share, us)| (share.parse::<f64>().unwrap(), us.parse::<f64>().unwrap()));
        marks.find(|(share, _)| *share >= 50.0).unwrap()
    };
    let ((tcp, tcp_us), (iser, iser_us)) = (within("iSCSI over TCP"), within("iSCSI over RDMA"));
    assert!((50.0..58.0).contains(&tcp) && (50.0..58.0).contains(&iser), "{tcp} {iser}");
    assert!((124.0..133.0).contains(&tcp_us) && (74.0..80.0).contains(&iser_us), "{tcp_us} {iser_us}");
    lab::verify::seal(bench.folder.path()).unwrap();
    let verified = lab::verify::verify(bench.folder.path()).unwrap();
    assert_eq!((verified.distributions, verified.wrong), (18, Vec::new()));

    // A histogram and intervals that lack an I/O, no histogram, and one of other percentiles.
    let changed = |changes: &[(&str, &str)]| {
        let path = bench.folder.path().join("made-up/records/transport=tcp,block=512-r1.json");
        let text = fs::read_to_string(&path).unwrap();
        let other = changes.iter().fold(text.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from}: {text}");
            text.replacen(from, to, 1)
        });
        fs::write(&path, other).unwrap();
        let wrong = lab::verify::verify(bench.folder.path()).unwrap().wrong.join("\n");
        fs::write(&path, text).unwrap();
        wrong
    };
    let (ios, histogram) = ("\"ios\": 1000", "\"histogram_ns\": \"");
    for (changes, told) in [
        (vec![(ios, "\"ios\": 1001")], "the histogram has 1000 I/Os of 1001"),
        (vec![("\"ios\": 600", "\"ios\": 599")], "the intervals have 999 I/Os of 1000"),
        (vec![(histogram, "\"histogram_ns\": \"5")], "is no bucket"),
        (
            vec![(ios, "\"ios\": 2000"), (histogram, "\"histogram_ns\": \"63:1000 ")],
            "p50_us is 124.031, and from 0.062 to",
        ),
    ] {
        let wrong = changed(&changes);
        assert!(wrong.contains(told), "{told}: {wrong}");
    }
}

#[test]
fn a_comparison_tells_what_is_more_than_noise() {
    let mut first = Bench::new(TEXT);
    first.run(&first.options(), usual).unwrap();
    let mut second = Bench::new(TEXT);
    let slower = |point: &Point, context: &Context| {
        let slow = if point.key() == "transport=tcp,block=4096" { 0.5 } else { 1.01 };
        usual(point, context).map(|iops| iops * slow)
    };
    second.run(&second.options(), slower).unwrap();
    let comparison = lab::compare::compare(&[first.results()], &[second.results()]);
    let pair = &comparison.pairs[0];
    assert_eq!(pair.lines.len(), 12);
    let real: Vec<_> = pair.lines.iter().filter(|line| line.change != lab::compare::Change::Noise).collect();
    assert_eq!(real.len(), 2, "{real:?}");
    assert!(real.iter().all(|line| line.key == "transport=tcp,block=4096"));
    assert!(
        real.iter().all(|line| line.change == lab::compare::Change::Worse),
        "half the rate, twice the latency"
    );
    let text = comparison.text(false);
    assert!(
        text.contains("2 of 12 figures differ by more than noise")
            && text.contains("worse             0.5 times"),
        "{text}"
    );
    assert_eq!(comparison.text(true).lines().count(), 13);
    // A result equals itself.
    let same = lab::compare::compare(&[first.results()], &[first.results()]);
    assert!(same.pairs[0].lines.iter().all(|line| line.change == lab::compare::Change::Noise));
}

#[test]
fn a_comparison_warns_of_machines_that_were_not_alike() {
    let mut bench = Bench::new(TEXT);
    bench.run(&bench.options(), usual).unwrap();
    let warnings = |change: &dyn Fn(&mut Results)| {
        let (first, mut second) = (bench.results(), bench.results());
        change(&mut second);
        lab::compare::compare(&[first], &[second]).pairs.remove(0).beware
    };
    let as_it_is = warnings(&|_| ());
    let told = |change: &dyn Fn(&mut Results)| {
        let mut told = warnings(change);
        told.retain(|warning| !as_it_is.contains(warning));
        told.join("; ")
    };
    let turn = |second: &mut Results, runs: usize| {
        second.records.iter_mut().take(runs).for_each(|record| record.load.awake = !record.load.awake);
    };
    let were_awake = bench.results().records[0].load.awake;
    let (first, other) =
        if were_awake { ("kept awake", "not kept awake") } else { ("not kept awake", "kept awake") };
    let words = |second: &str| format!("processors were {first} in the first and {second} in the second");
    assert_eq!(told(&|second| turn(second, usize::MAX)), words(other));
    assert_eq!(told(&|second| turn(second, 1)), words("kept awake for a part of the runs"));
    let hypervisor = told(&|second| second.info.machine.hypervisor += "X");
    assert!(hypervisor.starts_with("another kind of machine: "), "{hypervisor}");
    let governor = told(&|second| second.info.machine.governor += "X");
    assert!(governor.starts_with("another governor of the clock: "), "{governor}");
    let leaks =
        told(&|second| drop(second.info.machine.mitigations.insert("x".into(), "Mitigation: X".into())));
    assert_eq!(leaks, "what the processor does against leaks is not the same: x");
    let settings = told(&|second| drop(second.info.machine.sysctl.insert("net.x".into(), "X".into())));
    assert_eq!(settings, "the kernel's settings are not the same: net.x");
}

#[test]
fn a_file_of_results_that_was_cut_short_is_told_and_measured_again() {
    let mut bench = Bench::new(TEXT);
    bench.run(&bench.options(), usual).unwrap();
    let file = bench.folder.path().join("made-up/records/transport=tcp,block=512-r2.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    assert_eq!(bench.results().broken.len(), 1);
    let summary = bench.run(&bench.options(), usual).unwrap();
    assert_eq!(summary.experiments[0].measured, 1);
    assert!(bench.results().broken.is_empty());
}

fn context(folder: &Path, within: f64) -> Context {
    Context::new("/bin/true".into(), folder.to_owned(), Duration::from_secs_f64(within), Stop::default())
}

#[test]
fn a_process_that_does_not_end_is_ended_with_all_that_it_has_started() {
    let folder = tempfile::tempdir().unwrap();
    // The time to start a process here varies.
    let started = [0.3, 3.0, 30.0].into_iter().find_map(|within| {
        let context = context(folder.path(), within);
        let began = Instant::now();
        let mut command = context.command(Role::Client, "sh");
        command.args(["-c", "sleep 1234.5 & echo $!; wait"]);
        let error = context.output(command, "sleeps").unwrap_err();
        assert!(matches!(error, Error::Late(_)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(90));
        let pid = fs::read_to_string(folder.path().join("sleeps.out")).unwrap();
        (!pid.trim().is_empty()).then_some(pid)
    });
    let pid = started.expect("a shell starts");
    let gone = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !gone() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(gone(), "the sleep that it started runs on");
}

#[test]
fn a_process_hears_sigterm_though_the_lab_keeps_it_from_itself() {
    let folder = tempfile::tempdir().unwrap();
    let context = context(folder.path(), 90.0);
    // In this test's own thread only.
    nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGTERM).thread_block().unwrap();
    let heard = folder.path().join("heard");
    let mut command = context.command(Role::Target, "sh");
    command.args(["-c", "trap 'echo TERM >\"$0\"; exit' TERM; echo ready; while :; do sleep 0.05; done"]);
    command.arg(&heard);
    let mut running = context.start(command, "sleeps").unwrap();
    context.wait_for(&mut running, "ready").unwrap();
    drop(running);
    assert_eq!(
        fs::read_to_string(heard).unwrap_or_default(),
        "TERM\n",
        "it was ended by SIGKILL only, after 3 s"
    );
    assert!(nix::sys::signal::SigSet::thread_get_mask().unwrap().contains(nix::sys::signal::Signal::SIGTERM));
}

#[test]
fn a_process_that_fails_does_so_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let context = context(folder.path(), 90.0);
    let mut command = context.command(Role::Target, "sh");
    command.args(["-c", "echo one; echo 'no such unit' >&2; exit 3"]);
    assert_eq!(context.output(command, "sh").unwrap_err().to_string(), "sh: no such unit");
    let mut command = context.command(Role::Target, "sh");
    command.args(["-c", "exit 3"]);
    assert_eq!(context.output(command, "sh").unwrap_err().to_string(), "sh: exit status: 3");
    let missing =
        context.output(context.command(Role::Target, "no-such-program-at-all"), "none").unwrap_err();
    assert!(matches!(missing, Error::Missing(_)), "{missing}");
    let mut command = context.command(Role::Target, "sh");
    command.args(["-c", "printf 'half a li'; sleep 0.2; echo 'ne, listening on 7'; sleep 60"]);
    let mut running = context.start(command, "serves").unwrap();
    assert_eq!(context.wait_for(&mut running, "listening").unwrap(), "half a line, listening on 7");
    drop(running);
}

#[test]
fn invalid_experiment_files_are_refused_with_a_clear_message() {
    for (from, to, said) in [
        ("format = 1", "format = 9", "format 9 is not known"),
        ("name = \"made-up\"", "name = \"../made-up\"", "should be of lower-case letters"),
        ("rounds = 3", "rounds = 0", "`rounds` should be from 1 to 1000"),
        ("values = [512, \"4k\", \"64k\"]", "values = []", "axis `block` has no values"),
        ("values = [512, \"4k\", \"64k\"]", "values = [512, \"4k\", 4096]", "axis `block` has 4096 twice"),
        ("x = \"block\"", "x = \"blok\"", "there is no axis `blok`"),
        ("of = { block = 512 }", "of = { block = \"8k\" }", "axis `block` has no value 8192"),
        ("at-most = 100", "", "say `at-least`, `at-most` or both"),
        ("y-scale = \"log10\"", "y-scale = \"log10\"\nkind = \"bars\"", "bars begin at zero"),
        ("y-scale = \"log10\"", "kind = \"cdf\"", "cdf draws latencies by their share"),
        ("rounds = 3", "rouns = 3", "unknown field `rouns`"),
        ("labels = { iser", "labels = { iserr", "axis `transport` has no value iserr"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let error = Experiment::read(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    let huge = format!("{TEXT}\n[[axis]]\nname = \"n\"\nvalues = {:?}\n", (0..1000).collect::<Vec<_>>());
    assert!(Experiment::read(&huge).unwrap_err().to_string().contains("more than 4096 points"));
}
