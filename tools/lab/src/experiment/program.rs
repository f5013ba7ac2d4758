//! A server or a client that an experiment's file describes by its commands: what is started, when
//! it is ready, and where its figures stand in what it prints. This module reads and checks the
//! description; the measure `commands` runs it.
//!
//! `{name}` in a command, a file, a value of the environment or a URL stands for a value of the
//! point: an axis, a setting, or one of [`GIVEN`]. `{{name}}` is `{name}` itself, and any other
//! brace stays.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde::Deserialize;

use super::{Experiment, Many};
use crate::sample::Better;

/// The kind of measurement that runs programs.
pub(crate) const COMMANDS: &str = "commands";

/// The names that stand for more than an axis or a setting.
pub(crate) const GIVEN: &[&str] = &[
    "address",
    "client-address",
    "folder",
    "port",
    "port-2",
    "port-3",
    "port-4",
    "round",
    "seconds",
    "seconds-ms",
    "seed",
    "stag",
    "unit",
    "unit-size",
    "url",
    "warmup",
    "warmup-ms",
];

/// A server or a client.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Program {
    /// The programs that its end must have, with the names of their Debian packages. A point is
    /// left out where one is missing.
    pub needs: BTreeMap<String, String>,
    /// The machine that it runs on, if another.
    pub host: Option<Host>,
    /// Files that are written into its folder first: text by name.
    pub files: BTreeMap<String, String>,
    /// Its environment, beyond that of the lab.
    pub env: BTreeMap<String, String>,
    /// The command that runs in the foreground until the point is over.
    pub start: Vec<String>,
    /// A regular expression: `start` is ready once a line of its output matches.
    pub ready: Option<Pattern>,
    /// Commands that must succeed after that, one after another; each is tried again until it does.
    pub setup: Vec<Vec<String>>,
    /// How long it may take until all of that is done, seconds.
    pub patience_s: f64,
    /// Of a server: where the client finds it.
    pub url: String,
    /// Of a client: the load. Of a server: a command after the load, whose output has figures.
    pub run: Vec<String>,
    /// The figures in the output of `run`, by quantity.
    pub figures: BTreeMap<String, Figure>,
    /// Commands at the end of the point, however it ends, before `start` is ended by SIGTERM.
    pub end: Vec<Vec<String>>,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            needs: BTreeMap::new(),
            host: None,
            files: BTreeMap::new(),
            env: BTreeMap::new(),
            start: Vec::new(),
            ready: None,
            setup: Vec::new(),
            patience_s: 10.0,
            url: String::new(),
            run: Vec::new(),
            figures: BTreeMap::new(),
            end: Vec::new(),
        }
    }
}

/// Another machine, which `ssh` reaches without a question.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    /// Its name for `ssh`, after options if need be.
    pub ssh: Many,
    /// Its address for the other end.
    pub address: String,
}

/// A figure in a program's output.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figure {
    /// Where it stands in JSON (RFC 6901): `/jobs/0/read/iops`. Text before the JSON is skipped.
    pub json: Option<String>,
    /// A regular expression whose first group is the number.
    pub text: Option<Pattern>,
    /// The match of `text` that counts, if there are several.
    #[serde(default)]
    pub take: Take,
    /// A factor for the number.
    #[serde(default = "one")]
    pub scale: f64,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub better: Better,
}

/// The choice among several numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    First,
    #[default]
    Last,
    Mean,
    Sum,
}

/// A regular expression of the crate `regex`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(pub Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;
    fn try_from(text: String) -> Result<Self, regex::Error> {
        Regex::new(&text).map(Self)
    }
}

fn one() -> f64 {
    1.0
}

impl Program {
    /// All texts in which names stand for values.
    fn texts(&self) -> impl Iterator<Item = &String> {
        let lists = [&self.start, &self.run].into_iter().chain(&self.setup).chain(&self.end);
        lists.flatten().chain(self.files.values()).chain(self.env.values()).chain([&self.url])
    }

    /// Whether `name` stands in one of its texts.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.texts().any(|text| names(text).any(|found| found == name))
    }

    fn check(&self) -> Result<(), String> {
        if self.start.is_empty() && self.ready.is_some() {
            return Err("`ready` is about the output of `start`, which is missing".to_owned());
        }
        if !(0.1..=3600.0).contains(&self.patience_s) {
            return Err("`patience-s` should be from 0.1 to 3600".to_owned());
        }
        if self.setup.iter().chain(&self.end).any(Vec::is_empty) {
            return Err("`setup` and `end` are lists of commands, which are lists of words".to_owned());
        }
        if let Some(name) = self.files.keys().find(|name| name.is_empty() || name.contains(['/', '\0'])) {
            return Err(format!("file {name:?}: names of files have no folders"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(format!("env {name:?}: no variable can have that name"));
        }
        if self.host.as_ref().is_some_and(|host| host.ssh.list().iter().all(String::is_empty)) {
            return Err("`host.ssh` names no machine".to_owned());
        }
        if self.run.is_empty() != self.figures.is_empty() {
            return Err("`run` and `figures` belong together".to_owned());
        }
        for (name, figure) in &self.figures {
            match (&figure.json, &figure.text) {
                (Some(at), None) if at.starts_with('/') => {}
                (None, Some(Pattern(pattern))) if pattern.captures_len() > 1 => {}
                (Some(_), None) => return Err(format!("figure `{name}`: `json` should begin with /")),
                (None, Some(_)) => {
                    return Err(format!("figure `{name}`: `text` has no group in parentheses"));
                }
                _ => return Err(format!("figure `{name}`: say `json` or `text`")),
            }
            if !figure.scale.is_finite() {
                return Err(format!("figure `{name}`: `scale` should be a number"));
            }
        }
        Ok(())
    }
}

impl Experiment {
    /// The names that stand in the texts of its programs.
    pub(crate) fn named(&self) -> BTreeSet<&str> {
        let texts = self.server.values().chain(self.client.values()).flat_map(Program::texts);
        texts.flat_map(|text| names(text)).collect()
    }

    pub(super) fn check_programs(&self) -> Result<(), String> {
        if self.measure != COMMANDS {
            return match self.server.is_empty() && self.client.is_empty() {
                true => Ok(()),
                false => Err(format!("`server` and `client` are read by the measure `{COMMANDS}` alone")),
            };
        }
        let mut units: BTreeMap<&str, &str> = BTreeMap::new();
        for (what, programs) in [("server", &self.server), ("client", &self.client)] {
            if programs.is_empty() {
                return Err(format!("`{COMMANDS}` needs a table [{what}.NAME]"));
            }
            for (name, program) in programs {
                let wrong = |why: String| format!("{what} `{name}`: {why}");
                program.check().map_err(wrong)?;
                if what == "client" && program.run.is_empty() {
                    return Err(wrong("a client needs `run`, the load".to_owned()));
                }
                for (quantity, figure) in &program.figures {
                    if units.insert(quantity, &figure.unit).is_some_and(|unit| unit != figure.unit) {
                        return Err(wrong(format!("figure `{quantity}` has another unit elsewhere")));
                    }
                }
            }
            for point in self.points(false).iter().chain(&self.points(true)) {
                let chosen = point.text(what).map_err(|error| error.to_string())?;
                let program = choose(programs, chosen.as_deref()).map_err(|why| format!("`{what}` {why}"))?;
                let link = point.text("link").map_err(|error| error.to_string())?;
                if program.host.is_some() && link.is_some_and(|link| link != "loopback") {
                    return Err(format!("{what}: no link of the lab leads to its `host`: leave `link` out"));
                }
            }
        }
        let of_axes = self.axis.iter().flat_map(|axis| axis.settings.values());
        let tables = [&self.settings, &self.quick.settings].into_iter().chain(of_axes);
        let mut known: BTreeSet<&str> = tables.flat_map(toml::Table::keys).map(String::as_str).collect();
        let axes = self.axis.iter().map(|axis| axis.name.as_str());
        if let Some(name) = axes.chain(known.iter().copied()).find(|name| is_taken(name)) {
            return Err(format!("{{{name}}} is given: an axis or setting needs another name"));
        }
        known.extend(self.axis.iter().map(|axis| axis.name.as_str()).chain(GIVEN.iter().copied()));
        match self.named().into_iter().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(name) => Err(format!(
                "{{{name}}} is no axis, no setting, and none of {} (write {{{{{name}}}}} for the braces themselves)",
                GIVEN.join(", ")
            )),
        }
    }
}

/// Whether `name` is given, and no setting that the measure reads.
fn is_taken(name: &str) -> bool {
    GIVEN.contains(&name) && !["seconds", "warmup", "unit", "unit-size"].contains(&name)
}

/// The program of that name; where there is only one, it needs no name.
pub(crate) fn choose<'a>(
    programs: &'a BTreeMap<String, Program>,
    name: Option<&str>,
) -> Result<&'a Program, String> {
    let names = || programs.keys().cloned().collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => programs
            .get(name)
            .ok_or_else(|| format!("is {name}, and there is no such table; there are: {}", names())),
        None if programs.len() == 1 => programs.values().next().ok_or_else(names),
        None => Err(format!("is neither an axis nor a setting; choose among: {}", names())),
    }
}

/// A piece of a text.
enum Piece<'a> {
    /// It stays.
    Text(&'a str),
    /// The name of a value.
    Name(&'a str),
}

/// The pieces of `text`.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(open) = rest.get(from..).and_then(|tail| tail.find('{')).map(|at| from + at) {
        let (before, tail) = rest.split_at(open);
        let escaped = tail.starts_with("{{");
        let inner = tail.trim_start_matches('{');
        let length =
            inner.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c)));
        let (name, close) = inner.split_at(length.unwrap_or(inner.len()));
        let braces = tail.len() - inner.len();
        let named = name.starts_with(|c: char| c.is_ascii_lowercase());
        if named && escaped && braces == 2 && close.starts_with("}}") {
            found.push(Piece::Text(before));
            found.push(Piece::Text(&tail[1..name.len() + 3]));
            (rest, from) = (&close[2..], 0);
        } else if named && braces == 1 && close.starts_with('}') {
            found.push(Piece::Text(before));
            found.push(Piece::Name(name));
            (rest, from) = (&close[1..], 0);
        } else {
            from = open + braces;
        }
    }
    found.push(Piece::Text(rest));
    found
}

/// The names that stand for values in `text`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).into_iter().filter_map(|piece| match piece {
        Piece::Name(name) => Some(name),
        Piece::Text(_) => None,
    })
}

/// `text` with the values of its names.
///
/// # Errors
/// Those of `value`.
pub(crate) fn expand<E>(text: &str, value: impl Fn(&str) -> Result<String, E>) -> Result<String, E> {
    pieces(text)
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(text) => Ok(text.to_owned()),
            Piece::Name(name) => value(name),
        })
        .collect()
}

/// The name that `word` wholly is.
pub(crate) fn sole_name(word: &str) -> Option<&str> {
    let mut found = pieces(word).into_iter().filter(|piece| !matches!(piece, Piece::Text("")));
    match (found.next(), found.next()) {
        (Some(Piece::Name(name)), None) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_values_and_other_braces_stay() {
        let of = |text: &str| expand(text, |name| Ok::<_, ()>(format!("<{name}>"))).unwrap();
        assert_eq!(of("portal={address}:{port-2}"), "portal=<address>:<port-2>");
        assert_eq!(
            of("EXPORT { Path = {folder}; FSAL { Name = VFS; } }"),
            "EXPORT { Path = <folder>; FSAL { Name = VFS; } }"
        );
        assert_eq!(of("{{port}} {\"a\": {}} ${HOME} {"), "{port} {\"a\": {}} ${HOME} {");
        assert_eq!(of("{{{port}}} {a b} é{x}é"), "{{{port}}} {a b} é<x>é");
        assert_eq!(sole_name("{options}"), Some("options"));
        assert!(
            sole_name("-{options}").is_none() && sole_name("{a}{b}").is_none() && sole_name("a").is_none()
        );
    }

    fn wrong(more: &str) -> String {
        let text = format!("format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'commands'\n{more}");
        Experiment::read(&text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_description_that_cannot_be_run_is_refused_when_it_is_read() {
        let server = "[server.a]\nstart = ['serve', '{port}']\n";
        let client = "[client.c]\nrun = ['load', '{url}', '{how}']\nfigures.iops = { json = '/iops', unit = 'IOPS' }\n";
        let good = format!("settings = {{ how = 'read' }}\n{server}{client}");
        assert_eq!(wrong(&good), "");
        assert!(wrong(server).contains("[client.NAME]"));
        assert!(wrong(&format!("{server}{client}")).contains("{how} is no axis"));
        assert!(wrong(&format!("{good}[server.b]\n")).contains("choose among: a, b"));
        assert!(wrong(&good.replace("json = '/iops'", "json = 'iops'")).contains("begin with /"));
        assert!(wrong(&good.replace("json = '/iops'", "text = 'iops=1'")).contains("no group"));
        assert!(wrong(&good.replace("json = '/iops'", "text = '('")).contains("regex"));
        assert!(wrong(&good.replace("start", "run")).contains("`run` and `figures`"));
        assert!(
            wrong(&good.replace("[server.a]", "[server.a]\nfiles = { '../x' = '' }")).contains("no folders")
        );
        let port = good.replace("{ how", "{ port = 1, how");
        assert!(wrong(&port).contains("{port} is given"));
        let host = |ssh: &str| {
            let more = format!("[server.a]\nhost = {{ ssh = {ssh}, address = '192.0.2.1' }}");
            wrong(&good.replace("[server.a]", &more).replace("{ how", "{ link = 'lan', how"))
        };
        assert!(host("''").contains("names no machine") && host("[]").contains("names no machine"));
        assert!(host("'lab2'").contains("no link of the lab"));
        assert!(
            wrong(&good.replace("[server.a]", "[server.a]\nenv = { 'A=B' = '' }")).contains("no variable")
        );
        let axis = "[[axis]]\nname = 'server'\nvalues = ['a', 'z']\n";
        assert!(wrong(&format!("{good}{axis}")).contains("is z, and there is no such table"));
        let other = good.replace("settings", "#");
        let other = format!("format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'bench'\n{other}");
        assert!(Experiment::read(&other).unwrap_err().to_string().contains("`commands` alone"));
    }
}
