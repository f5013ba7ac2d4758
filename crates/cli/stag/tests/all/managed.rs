//! The two parts of what a daemon serves: the administrator's configuration, and the managed
//! document, which the daemon keeps itself.

use std::fs;
use std::path::PathBuf;

use crate::support::command::{Server, fails, free_portal, path, said, stag, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

const FILE: &str = "iqn.2026-01.org.example:file";
const OWN: &str = "iqn.2026-01.org.example:own";

/// A target with one unit.
fn target(iqn: &str, disk: &str) -> String {
    format!("[[target]]\niqn = \"{iqn}\"\n[[target.unit]]\nlun = 0\npath = \"{disk}\"\nsize = \"1M\"\n")
}

/// A machine on which a daemon with a managed document starts again and again.
struct Machine {
    dir: tempfile::TempDir,
    socket: String,
    file: String,
    portal: String,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
        let machine = Self { dir, socket, file, portal: free_portal() };
        machine.configure(&target(FILE, "file.img"));
        machine
    }

    /// Writes the administrator's configuration.
    fn configure(&self, targets: &str) {
        let head =
            format!("managed = true\ncores = 1\nsandbox-directories = [\"{}\"]\n", self.dir.path().display());
        fs::write(&self.file, format!("{head}[[portal]]\nlisten = \"{}\"\n{targets}", self.portal)).unwrap();
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Starts a daemon that serves so many units.
    fn start(&self, more: &[&str], units: usize) -> Server {
        let words = ["--config", &self.file, "--control", &self.socket];
        Server::start_on(&self.state(), &[&words[..], more].concat(), units)
    }

    /// A file with `text`, to apply.
    fn written(&self, text: &str) -> String {
        let file = path(self.dir.path(), "to-apply.toml");
        fs::write(&file, text).unwrap();
        file
    }

    fn status(&self) -> Value {
        serde_json::from_str(&said(&["status", "--control", &self.socket, "--json"])).unwrap()
    }

    /// The targets that are served, and whether each is managed.
    fn served(&self) -> Value {
        let status = self.status();
        let targets = status["targets"].as_array().unwrap().iter();
        targets.map(|target| json!([target["iqn"], target["managed"]])).collect()
    }
}

#[test]
fn neither_part_throws_the_other_out() {
    let machine = Machine::new();
    let server = machine.start(&[], 1);
    assert_eq!(machine.served(), json!([[FILE, false]]));
    let before = machine.status()["generation"].as_u64().unwrap();
    let own = machine.written(&(target(OWN, "own.img") + "[[export]]\nname = \"/own\"\npath = \"mem:1M\"\n"));
    let plan = said(&["apply", "--control", &machine.socket, "--managed", "--dry-run", &own]);
    assert!(plan.contains(&format!("+ target {OWN}")) && !plan.contains(FILE), "{plan}");
    assert!(!machine.state().join("managed.toml").exists(), "a plan keeps nothing");
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    let both = json!([[FILE, false], [OWN, true]]);
    assert_eq!(machine.served(), both);
    assert_eq!(machine.status()["generation"].as_u64(), Some(before + 1));
    assert_eq!(machine.status()["nfs"]["exports"][0]["managed"], true);
    assert!(said(&["status", "--control", &machine.socket]).contains(&format!("target {OWN} (managed)")));
    // The same once more changes nothing.
    assert!(said(&["apply", "--control", &machine.socket, "--managed", &own]).contains("nothing to change"));
    assert_eq!(machine.status()["generation"].as_u64(), Some(before + 1));

    // The administrator's file is another one, by a command and by a signal.
    machine.configure(&(target(FILE, "file.img") + &target("iqn.2026-01.org.example:more", "more.img")));
    said(&["apply", "--control", &machine.socket, &machine.file]);
    assert_eq!(machine.served().as_array().unwrap().len(), 3);
    machine.configure(&target(FILE, "file.img"));
    server.signal(Signal::HUP);
    wait_until("the file is read again", || machine.served() == both);

    // A takeover, a crash and a start.
    let next = machine.start(&["--takeover", "--lose-memory-units"], 3);
    assert_eq!(server.ended(), Some(0));
    assert_eq!(machine.served(), both);
    assert!(machine.status()["generation"].as_u64().unwrap() > before + 1, "it grows over starts too");
    next.end(Signal::KILL);
    let last = machine.start(&[], 3);
    assert_eq!(machine.served(), both);

    // Each part is emptied by itself.
    said(&["apply", "--control", &machine.socket, "--managed", &machine.written("")]);
    assert_eq!(machine.served(), json!([[FILE, false]]));
    drop(last);
    let _again = machine.start(&[], 1);
    assert_eq!(machine.served(), json!([[FILE, false]]));
}

#[test]
fn a_conflict_of_the_parts_changes_nothing_and_names_both_files() {
    let machine = Machine::new();
    let _server = machine.start(&[], 1);
    let own = machine.written(&target(OWN, "own.img"));
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    let both = machine.served();
    let kept = fs::read(machine.state().join("managed.toml")).unwrap();
    let names_both = |error: &str| {
        assert!(
            error.contains(OWN) && error.contains("stag.toml") && error.contains("managed.toml"),
            "{error}"
        );
    };
    let twice = machine.written(&(target(OWN, "own.img") + &target(FILE, "x.img")));
    let error = fails(&["apply", "--control", &machine.socket, "--managed", &twice], 3);
    assert!(error.contains(FILE) && error.contains("stag.toml") && error.contains("managed.toml"), "{error}");
    machine.configure(&target(OWN, "other.img"));
    names_both(&fails(&["apply", "--control", &machine.socket, &machine.file], 3));
    // Mistakes are shown as those of a configuration.
    let wrong = machine.written("cores = 2\n[[target]]\niqn = \"iqn.2026-01.org.example:x\"\ngroups = [9]\n");
    let error = fails(&["apply", "--control", &machine.socket, "--managed", &wrong], 3);
    assert!(error.contains("knows no `cores`") && error.contains("no portal has group 9"), "{error}");
    assert_eq!(machine.served(), both);
    assert_eq!(fs::read(machine.state().join("managed.toml")).unwrap(), kept);
}

/// A daemon that did not start would serve nothing of either.
#[test]
fn a_start_serves_the_administrators_target_and_says_that_the_other_is_left_out() {
    let machine = Machine::new();
    let server = machine.start(&[], 1);
    let more = "iqn.2026-01.org.example:more";
    let own = machine.written(&(target(OWN, "own.img") + &target(more, "more.img")));
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    let kept = fs::read(machine.state().join("managed.toml")).unwrap();
    machine.configure(&target(OWN, "other.img"));
    server.end(Signal::TERM);
    let _server = machine.start(&[], 2);
    assert_eq!(machine.served(), json!([[OWN, false], [more, true]]));
    let unit = machine.status()["targets"][0]["units"][0]["path"].as_str().unwrap().to_owned();
    assert!(unit.ends_with("other.img"), "{unit}");
    let check = || {
        let checked = stag(&["status", "--control", &machine.socket, "--check"]);
        (checked.status.code(), String::from_utf8_lossy(&checked.stdout).into_owned())
    };
    let left_out = format!("CRITICAL: {OWN} of the managed document is not served");
    let (status, told) = check();
    assert!(status == Some(2) && told.contains(&left_out), "{told}");
    assert_eq!(fs::read(machine.state().join("managed.toml")).unwrap(), kept);
    // A change that leaves both is refused, and takes nothing from the administrator.
    let third = machine.written(&(target(OWN, "own.img") + &target(more, "third.img")));
    assert!(fails(&["apply", "--control", &machine.socket, "--managed", &third], 3).contains(OWN));
    assert_eq!(machine.served(), json!([[OWN, false], [more, true]]));
    // Taken out of one of them, all is served.
    machine.configure(&target(FILE, "file.img"));
    said(&["apply", "--control", &machine.socket, &machine.file]);
    assert_eq!(machine.served(), json!([[FILE, false], [OWN, true], [more, true]]));
    assert!(!check().1.contains("not served"), "{}", check().1);
}

#[test]
fn a_document_that_cannot_be_kept_is_not_served() {
    let machine = Machine::new();
    let _server = machine.start(&[], 1);
    // In the way of the new file, and not to be removed.
    let in_the_way = machine.state().join("managed.toml.new");
    fs::create_dir_all(in_the_way.join("full")).unwrap();
    let own = machine.written(&target(OWN, "own.img"));
    let error = fails(&["apply", "--control", &machine.socket, "--managed", &own], 1);
    assert!(
        error.contains("managed.toml cannot be written") && error.contains("nothing has been changed"),
        "{error}"
    );
    assert_eq!(machine.served(), json!([[FILE, false]]));
    fs::remove_dir_all(in_the_way).unwrap();
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    assert_eq!(machine.served(), json!([[FILE, false], [OWN, true]]));
}

#[test]
fn a_change_planned_on_an_older_generation_is_refused() {
    let machine = Machine::new();
    let _server = machine.start(&[], 1);
    let shown = |words: &[&str]| -> Value {
        serde_json::from_str(&said(&[words, &["--json", "--control", &machine.socket]].concat())).unwrap()
    };
    let own = machine.written(&target(OWN, "own.img"));
    let planned = shown(&["apply", "--managed", "--dry-run", &own])["generation"].to_string();
    assert_eq!(planned, machine.status()["generation"].to_string());
    said(&["apply", "--control", &machine.socket, &machine.file]);
    let words = ["apply", "--control", &machine.socket, "--managed", "--generation", &planned, &own];
    assert!(fails(&words, 1).contains("another change came between"));
    assert_eq!(machine.served(), json!([[FILE, false]]));
    let planned = machine.status()["generation"].to_string();
    let done = shown(&["apply", "--managed", "--generation", &planned, &own]);
    assert_eq!(done["generation"], machine.status()["generation"]);
    assert_eq!(shown(&["managed"])["document"]["target"][0]["iqn"], OWN);
}

/// An undo is a change like others: it has a plan and a generation, and can be undone.
#[test]
fn a_change_is_undone_by_the_document_from_before_it() {
    let machine = Machine::new();
    let server = machine.start(&[], 1);
    let managed = |more: &[&str]| said(&[&["managed", "--control", &machine.socket], more].concat());
    let none = fails(&["managed", "--control", &machine.socket, "--undo"], 1);
    assert!(none.contains("nothing to undo"), "{none}");
    let (only, both) = (json!([[FILE, false]]), json!([[FILE, false], [OWN, true]]));
    let own = machine.written(&target(OWN, "own.img"));
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    let made = machine.status()["generation"].as_u64().unwrap();
    let plan = managed(&["--undo", "--dry-run"]);
    assert!(plan.contains(&format!("- target {OWN}")) && machine.served() == both, "{plan}");
    let stale = ["managed", "--control", &machine.socket, "--undo", "--generation", "1"];
    assert!(fails(&stale, 1).contains("another change came between"));
    managed(&["--undo"]);
    assert_eq!(machine.served(), only);
    assert!(machine.state().join("own.img").exists(), "files of units stay");
    let history: Value = serde_json::from_str(&managed(&["--history", "--json"])).unwrap();
    let of =
        |at: usize| (history[at]["generation"].as_u64().unwrap(), history[at]["targets"].as_u64().unwrap());
    assert_eq!((of(0), of(1)), ((made, 1), (made - 1, 0)), "{history}");
    assert!(managed(&["--history"]).starts_with(&format!("{made}: written ")));
    managed(&["--undo"]);
    assert_eq!(machine.served(), both, "the undo is undone");
    managed(&["--undo", "--to", &(made - 1).to_string()]);
    assert_eq!(machine.served(), only);
    let unknown = fails(&["managed", "--control", &machine.socket, "--undo", "--to", "7"], 1);
    assert!(unknown.contains("generation 7 is not kept"), "{unknown}");
    // What was taken back is so after a start, too.
    server.end(Signal::KILL);
    let _server = machine.start(&[], 1);
    assert_eq!(machine.served(), only);
}

#[test]
fn secrets_are_kept_privately_and_never_shown() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    let _server = machine.start(&[], 1);
    let secret = "correct horse battery";
    let with = |auth: &str| {
        machine.written(&format!(
            "{}[target.auth]\nusers = [{{ name = \"a\"{auth} }}]\n",
            target(OWN, "own.img")
        ))
    };
    let own = with(&format!(", secret = \"{secret}\""));
    said(&["apply", "--control", &machine.socket, "--managed", &own]);
    let kept = machine.state().join("managed.toml");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&kept).unwrap().contains(secret));
    let shown = said(&["managed", "--control", &machine.socket]);
    assert!(shown.contains("name = \"a\"") && !shown.contains(secret), "{shown}");
    // What was shown can be applied again, with other settings.
    let changed = machine.written(&shown.replace("size = \"1M\"", "size = \"2M\""));
    said(&["apply", "--control", &machine.socket, "--managed", &changed]);
    assert_eq!(machine.status()["targets"][1]["units"][0]["size"], 2 << 20);
    assert!(fs::read_to_string(&kept).unwrap().contains(secret));
    // A mistake shows no secret either.
    let wrong = with(", secret = \"too short\"");
    let error = fails(&["apply", "--control", &machine.socket, "--managed", &wrong], 3);
    assert!(error.contains("12 to 255 bytes") && !error.contains("too short"), "{error}");
}

#[test]
fn a_daemon_that_keeps_no_document_says_how_to_have_one() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let _server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"], 1);
    assert!(fails(&["managed", "--control", &socket], 1).contains("managed = true"));
    let file = path(dir.path(), "own.toml");
    fs::write(&file, target(OWN, "own.img")).unwrap();
    assert!(fails(&["apply", "--control", &socket, "--managed", &file], 1).contains("managed = true"));
}
