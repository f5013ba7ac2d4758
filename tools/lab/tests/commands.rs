//! Servers and clients that are nothing but commands in the file of an experiment.

use std::path::Path;
use std::time::Duration;

use lab::{Context, Error, Experiment, Point, Sample, measures};

fn run(experiment: &Experiment, point: &Point, folder: &Path) -> Result<Sample, String> {
    try_run(experiment, point, folder).map_err(|error| error.to_string())
}

fn try_run(experiment: &Experiment, point: &Point, folder: &Path) -> Result<Sample, Error> {
    let mut context = Context::new("stag".into(), folder.into(), Duration::from_secs(20), Default::default());
    measures::of(experiment).unwrap().run(point, &mut context)
}

const FILE: &str = r#"
    format = 1
    name = "x"
    title = "X"
    measure = "commands"
    settings = { bytes = 7, options = ["-a", "b c"], unit-size = "64k", seconds = 0.3 }
    [[axis]]
    name = "client"
    values = ["json", "text", "failing", "missing", "refusing"]
    [server.files]
    start = ["sh", "{folder}/serve.sh", "{unit}", "{port}"]
    ready = '^serving on \d+$'
    setup = [["test", "-e", "{folder}/made"], ["sh", "-c", "echo {bytes} > {folder}/bytes"]]
    url = "{folder}/made"
    run = ["cat", "{folder}/bytes"]
    figures.bytes = { text = '(\d+)', unit = "B" }
    end = [["sh", "-c", "mv {folder}/made '{log}'"]]
    [server.files.files]
    "serve.sh" = "echo soon; wc -c < $1 > {folder}/size; echo serving on $2; sleep 0.2; cp {folder}/size {folder}/made; exec sleep 60"
    [client.json]
    env = { SIZE = "{bytes}" }
    run = ["sh", "-c", 'echo started; sleep {seconds}; echo "{\"n\": $(cat {url}), \"size\": \"$SIZE\", \"words\": $#}"', "sh", "{options}"]
    figures.iops = { json = "/n", unit = "IOPS", better = "higher" }
    figures.size = { json = "/size", scale = 2 }
    figures.words = { json = "/words" }
    [client.text]
    run = ["printf", 'rate 1\nrate 3\n']
    figures.iops = { text = 'rate (\S+)', take = "mean", unit = "IOPS" }
    [client.failing]
    run = ["sh", "-c", "echo no such disk >&2; exit 3"]
    figures.iops = { json = "/n", unit = "IOPS" }
    [client.refusing]
    run = ["sh", "-c", "echo no such kernel >&2; exit 77"]
    figures.iops = { json = "/n", unit = "IOPS" }
    [client.missing]
    needs = { no-such-program = "nothing" }
    run = ["no-such-program"]
    figures.iops = { json = "/n", unit = "IOPS" }
"#;

#[test]
fn a_file_is_all_that_a_server_and_a_client_need() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("ended");
    let text = FILE.replace("{log}", &log.display().to_string());
    let experiment = Experiment::read(&text).unwrap();
    let mut found = Vec::new();
    for point in experiment.points(false) {
        found.push(run(&experiment, &point, folder.path()));
        assert!(point.key().contains("missing") || log.exists(), "its last command did not run: {found:?}");
        let _ = std::fs::remove_file(&log);
    }
    let json = found[0].as_ref().unwrap();
    let of = |name: &str| json.values[name].value;
    assert_eq!((of("iops"), of("size"), of("words"), of("bytes")), (65536.0, 14.0, 2.0, 7.0));
    assert!(json.values.contains_key("target_us") && json.values.contains_key("client_percent"));
    assert_eq!(json.raw["client"]["words"], 2);
    assert_eq!(found[1].as_ref().unwrap().values["iops"].value, 2.0);
    assert!(found[2].as_ref().unwrap_err().contains("no such disk"), "{:?}", found[2]);
    assert!(found[3].as_ref().unwrap_err().contains("apt-get install nothing"), "{:?}", found[3]);
    let refused = try_run(&experiment, &experiment.points(false)[4], folder.path());
    assert!(matches!(&refused, Err(Error::Missing(why)) if why == "no such kernel"), "{refused:?}");
}

#[test]
fn a_server_that_ends_or_is_never_ready_fails_the_point() {
    let folder = tempfile::tempdir().unwrap();
    let began = |start: &str| {
        let text = format!(
            "format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'commands'\n[server.a]\nstart = ['sh', '-c', '{start}']\n\
             ready = 'never'\npatience-s = 0.3\n[client.b]\nrun = ['true']\nfigures.x = {{ json = '/x' }}\n"
        );
        let experiment = Experiment::read(&text).unwrap();
        run(&experiment, &experiment.points(false)[0], folder.path()).unwrap_err()
    };
    assert!(began("echo port in use >&2; exit 1").contains("port in use"));
    assert!(began("exec sleep 60").contains("not ready"));
}

#[test]
fn the_example_of_the_guide_is_a_file_that_runs() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/lab/writing.md"));
    let (_, part) = page.split_once("## Any server, any client").unwrap();
    let example = part.split("```").nth(1).unwrap().strip_prefix("toml").unwrap();
    let head = "format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'commands'\n";
    let with_block = example.replacen("[settings]", "[settings]\nblock = '4k'", 1);
    Experiment::read(&format!("{head}{with_block}")).unwrap();
    // What it has as comments, too.
    let whole = with_block.replace("\n# ", "\n").replace("[\"…\"]", "['true']");
    let whole = whole.replace("\nrun = ['true']", "\nrun = ['true']\nfigures.x = { json = '/x' }");
    Experiment::read(&format!("{head}{whole}")).unwrap();
}
