//! The managed document: targets and exports that the daemon itself keeps, beside the
//! administrator's configuration. Owns its file, its forms as TOML and JSON, and its join with the
//! configuration. Must never open a unit.
//!
//! Its grammar and its checks are those of the configuration. Neither part throws the other out: a
//! target or an export that both have is an error. A start leaves this document's out, and says so.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroize;

use crate::config::{self, Config, ConfigErrors, Text};
use crate::state;

/// Written at the beginning of the file.
const HEAD: &str =
    "# What `stag apply --managed` and the HTTP API have made. The daemon replaces this file.\n";
/// Keys by which tables of a list are told apart.
const NAMES: [&str; 6] = ["iqn", "lun", "initiator", "name", "network", "id"];

/// A managed document. Secrets in it are zeroed when it is dropped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// `target` and `export`, with the keys of a configuration.
    tables: Map<String, Value>,
    /// Names of its targets, in lower case, and exports that are not served: the administrator's
    /// configuration had them too when the daemon started.
    left_out: BTreeSet<String>,
}

/// The reason why a managed document is not served.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ManagedError {
    #[error("the managed document {path} cannot be used: {reason}")]
    #[diagnostic(help("repair or remove the file, or leave `managed` out of the configuration"))]
    Unusable { path: PathBuf, reason: String },
    #[error(transparent)]
    #[diagnostic(transparent)]
    Wrong(#[from] ConfigErrors),
    /// Both parts have the same.
    #[error("{}", .0.join("; "))]
    Conflict(Vec<String>),
}

impl ManagedError {
    /// One line for each mistake.
    pub fn lines(&self) -> String {
        match self {
            Self::Wrong(errors) => errors.lines().join("\n"),
            other => other.to_string(),
        }
    }
}

/// The document's file in the state directory.
///
/// # Errors
/// There is no state directory.
pub fn path() -> Result<PathBuf, String> {
    let directory = state::directory().ok_or("there is no state directory: set STATE_DIRECTORY to one")?;
    Ok(directory.join("managed.toml"))
}

impl Document {
    /// Reads the file at `path`. A missing file is an empty document.
    ///
    /// # Errors
    /// The file cannot be read, or is no TOML. Other mistakes show in [`Self::join`].
    pub fn read(path: &Path) -> Result<Self, ManagedError> {
        let unusable = |reason: String| ManagedError::Unusable { path: path.to_owned(), reason };
        let most = usize::try_from(config::MAX_FILE).unwrap_or(usize::MAX);
        let bytes = backing::durable::read(path, most).map_err(|error| unusable(error.to_string()))?;
        let text = String::from_utf8(bytes.unwrap_or_default());
        let text = Text::new(text.map_err(|_| unusable("it is no UTF-8 text".into()))?);
        Self::from_toml(&text).map_err(unusable)
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// It is none.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map(Self::of).map_err(|error| error.message().to_owned())
    }

    /// Takes JSON: an object with `target` and `export`.
    ///
    /// # Errors
    /// It is no object.
    pub fn from_json(json: Value) -> Result<Self, String> {
        let Value::Object(tables) = json else { return Err("the document is a JSON object".into()) };
        Ok(Self::of(tables))
    }

    /// A list of one table may stand without brackets. Here it does not, so that it is found.
    fn of(tables: Map<String, Value>) -> Self {
        let mut document = Self { tables, left_out: BTreeSet::new() };
        let listed = |tables: &mut Map<String, Value>, list: &str| {
            if let Some(alone) = tables.get_mut(list).filter(|found| found.is_object()) {
                *alone = Value::Array(vec![alone.take()]);
            }
        };
        listed(&mut document.tables, "target");
        listed(&mut document.tables, "export");
        let targets = document.tables.get_mut("target").and_then(Value::as_array_mut);
        let targets = targets.into_iter().flatten().filter_map(Value::as_object_mut);
        targets.for_each(|target| listed(target, "unit"));
        document
    }

    /// This document; secrets that it leaves out stay those of `before`.
    pub fn with_secrets_of(mut self, before: &Self) -> Self {
        for (key, value) in &mut self.tables {
            if let Some(before) = before.tables.get(key) {
                keep_secrets(value, before);
            }
        }
        self
    }

    /// As JSON, without secrets.
    pub fn shown(&self) -> Value {
        let mut shown = Value::Object(self.tables.clone());
        without_secrets(&mut shown);
        shown
    }

    /// As TOML, secrets included.
    ///
    /// # Errors
    /// It contains null, or a number that TOML does not have, or is too large to be read again.
    pub fn text(&self) -> Result<Text, String> {
        let text = self.written()?;
        self.read_again(&text)?;
        Ok(text)
    }

    /// Reads what [`Self::written`] has made. A table that was lost on the way could open a target
    /// to everybody.
    ///
    /// # Errors
    /// It is not this document.
    fn read_again<'a>(&self, text: &'a str) -> Result<Spanned<DeTable<'a>>, String> {
        let read = DeTable::parse(text).ok().filter(|read| is_table(read.get_ref(), &self.tables));
        read.ok_or_else(|| "the document cannot be written as TOML".to_owned())
    }

    /// As TOML, which is not yet held against this document.
    fn written(&self) -> Result<Text, String> {
        let text = toml::to_string(&self.tables).map(Text::new);
        let text = text.map_err(|error| format!("null and numbers above 2^63 are no values: {error}"))?;
        let text = Text::new(format!("{HEAD}{}", *text));
        // The next start would refuse the file, and serve nothing.
        match text.len() as u64 > config::MAX_FILE {
            true => Err(format!("it would have more than {} MiB", config::MAX_FILE >> 20)),
            false => Ok(text),
        }
    }

    /// Replaces the file at `path`, durably.
    ///
    /// # Errors
    /// As [`write`].
    pub fn write(&self, path: &Path) -> Result<(), String> {
        write(path, &self.text()?)
    }

    /// Names of its targets that are served, in lower case.
    pub fn targets(&self) -> HashSet<String> {
        let names = self.names("target", "iqn").map(|name| name.to_ascii_lowercase());
        names.filter(|name| !self.left_out.contains(name)).collect()
    }

    /// Names of its exports that are served.
    pub fn exports(&self) -> HashSet<String> {
        let names = self.names("export", "name").filter(|name| !self.left_out.contains(*name));
        names.map(str::to_owned).collect()
    }

    /// Its parts that are not served, and why: a sentence each.
    pub fn not_served(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|name| {
            format!(
                "{name} of the managed document is not served: the administrator's configuration has it too; \
                 take it out of one of them"
            )
        })
    }

    /// Leaves nothing out any more.
    pub fn serve_all(&mut self) {
        self.left_out.clear();
    }

    /// Its target `iqn`, to change it.
    ///
    /// # Errors
    /// It has none.
    #[cfg(feature = "http")]
    pub fn target(&mut self, iqn: &str) -> Result<Tables<'_>, String> {
        let all = self.tables.get_mut("target").and_then(Value::as_array_mut);
        let is_it = |table: &&mut Value| is_name(table.get("iqn"), &Value::from(iqn));
        match all.into_iter().flatten().find(is_it) {
            Some(Value::Object(tables)) => Ok(Tables(tables)),
            _ => Err(format!("the managed document has no target {iqn}")),
        }
    }

    /// All of it, to change it.
    #[cfg(feature = "http")]
    pub fn all(&mut self) -> Tables<'_> {
        Tables(&mut self.tables)
    }

    fn names(&self, list: &str, key: &'static str) -> impl Iterator<Item = &str> {
        let all = self.tables.get(list).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(move |table| table.get(key)?.as_str())
    }

    /// As [`Self::join`], for a daemon that starts: serving nothing would be worse. A target or an
    /// export that both have is left out of this document's until the next change, which is
    /// refused unless one of both has it no more.
    ///
    /// # Errors
    /// This document has mistakes, or both have something else in common.
    pub fn join_at_start(&mut self, file: Config, name: &str) -> Result<Config, ManagedError> {
        let (targets, exports) = (self.targets(), self.exports());
        let of_file = file.targets.iter().map(|target| target.iqn.to_ascii_lowercase());
        self.left_out.extend(of_file.filter(|name| targets.contains(name)));
        let of_file = file.exports.iter().map(|export| &export.name);
        self.left_out.extend(of_file.filter(|name| exports.contains(*name)).cloned());
        Ok(self.join(file, name)?.0)
    }

    /// The configuration `file`, which messages call `name`, with the targets and exports of this
    /// document that are served behind its own; and this document's text.
    ///
    /// # Errors
    /// This document has mistakes, or both have the same.
    pub fn join(&self, file: Config, name: &str) -> Result<(Config, Text), ManagedError> {
        let unusable = |path: &Path, reason| ManagedError::Unusable { path: path.to_owned(), reason };
        let path = path().map_err(|reason| unusable(Path::new("managed.toml"), reason))?;
        let text = self.written().map_err(|reason| unusable(&path, reason))?;
        let read = self.read_again(&text).map_err(|reason| unusable(&path, reason))?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let groups = file.groups();
        let place = config::Place { managed: Some(&groups), ..config::Place::new(directory) };
        let (mut managed, _) = config::load_document(&path.display().to_string(), &text, &read, &place)?;
        managed.targets.retain(|target| !self.left_out.contains(&target.iqn.to_ascii_lowercase()));
        managed.exports.retain(|export| !self.left_out.contains(&export.name));
        let both = format!("{name} and in {}", path.display());
        let joined = file.join(managed, &both).map_err(ManagedError::Conflict)?;
        Ok((joined, text))
    }

    /// `config`, which [`Self::join`] has made, without what is from this document.
    pub fn without(&self, config: &Config) -> Config {
        let (targets, exports) = (self.targets(), self.exports());
        config.only(
            |target| !targets.contains(&target.iqn.to_ascii_lowercase()),
            |export| !exports.contains(&export.name),
        )
    }
}

/// Replaces the file at `path` by a document's text, durably.
///
/// # Errors
/// The system's; the file then has the old content or the new one.
pub fn write(path: &Path, text: &Text) -> Result<(), String> {
    state::make_folder(path)?;
    let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    backing::durable::replace(path, text.as_bytes()).map_err(failed)
}

/// Tables of the document: all of it, or one target.
#[cfg(feature = "http")]
pub struct Tables<'a>(&'a mut Map<String, Value>);

#[cfg(feature = "http")]
impl Tables<'_> {
    /// Makes `table` the element of `list` whose `key` is `name`. Secrets that it leaves out stay.
    ///
    /// # Errors
    /// The table has another name.
    pub fn put(&mut self, list: &str, key: &str, name: Value, table: &Value) -> Result<(), String> {
        let mut table = table.clone();
        if table.get(key).is_some_and(|said| !is_name(Some(said), &name)) {
            return Err(format!("{key} of the body is not {name}, which the path says"));
        }
        let is_empty = table.get(key).is_none();
        let all = self.list(list)?;
        match all.iter_mut().find(|other| is_name(other.get(key), &name)) {
            Some(old) => {
                if is_empty {
                    table[key] = old[key].clone();
                }
                keep_secrets(&mut table, old);
                wipe(old);
                *old = table;
            }
            None => {
                if is_empty {
                    table[key] = name;
                }
                all.push(table);
            }
        }
        Ok(())
    }

    /// Removes the element of `list` whose `key` is `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&mut self, list: &str, key: &str, name: &Value) -> Result<(), String> {
        let all = self.list(list)?;
        let Some(at) = all.iter().position(|other| is_name(other.get(key), name)) else {
            return Err(format!("the managed document has no {list} with {key} = {name}"));
        };
        wipe(&mut all.remove(at));
        Ok(())
    }

    /// The element of `list` whose `key` is `name`, without secrets.
    pub fn shown(&mut self, list: &str, key: &str, name: &Value) -> Option<Value> {
        let mut found = self.list(list).ok()?.iter().find(|other| is_name(other.get(key), name))?.clone();
        without_secrets(&mut found);
        Some(found)
    }

    /// The tables of `list`, which is made if it is missing.
    fn list(&mut self, list: &str) -> Result<&mut Vec<Value>, String> {
        let found = self.0.entry(list).or_insert_with(|| Value::Array(Vec::new()));
        found.as_array_mut().ok_or_else(|| format!("{list} is no list of tables"))
    }
}

/// Whether both are one name. Letters of iSCSI names are no different in capitals; those of exports
/// are.
#[cfg(feature = "http")]
fn is_name(one: Option<&Value>, other: &Value) -> bool {
    match (one, other) {
        (Some(Value::String(one)), Value::String(other)) if !other.starts_with('/') => {
            one.eq_ignore_ascii_case(other)
        }
        (one, other) => one == Some(other),
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        self.tables.values_mut().for_each(wipe);
    }
}

/// Zeroes secrets.
pub fn wipe(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "secret" => text.zeroize(),
                    other => wipe(other),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(wipe),
        _ => {}
    }
}

fn without_secrets(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get_mut("secret") {
                text.zeroize();
            }
            map.remove("secret");
            map.values_mut().for_each(without_secrets);
        }
        Value::Array(all) => all.iter_mut().for_each(without_secrets),
        _ => {}
    }
}

/// Whether `read` says what `table` does.
fn is_table(read: &DeTable<'_>, table: &Map<String, Value>) -> bool {
    let is_value = |(key, value)| read.get(key).is_some_and(|read| is_value(read.get_ref(), value));
    read.len() == table.len() && table.iter().map(|(key, value)| (key.as_str(), value)).all(is_value)
}

fn is_value(read: &DeValue<'_>, value: &Value) -> bool {
    match (read, value) {
        (DeValue::String(read), Value::String(text)) => read == text,
        (DeValue::Boolean(read), Value::Bool(yes)) => read == yes,
        (DeValue::Integer(read), Value::Number(number)) => {
            i64::from_str_radix(read.as_str(), read.radix()).is_ok_and(|read| number.as_i64() == Some(read))
        }
        (DeValue::Float(read), Value::Number(number)) => {
            number.is_f64() && read.as_str().parse().is_ok_and(|read: f64| number.as_f64() == Some(read))
        }
        (DeValue::Array(read), Value::Array(all)) => {
            read.len() == all.len()
                && read.iter().zip(all).all(|(read, value)| is_value(read.get_ref(), value))
        }
        (DeValue::Table(read), Value::Object(table)) => is_table(read, table),
        _ => false,
    }
}

/// Gives names in `new` that have neither `secret` nor `secret-file` the secrets that they have in
/// `old`, at the same place.
fn keep_secrets(new: &mut Value, old: &Value) {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            let same = new.get("name") == old.get("name");
            let says = new.contains_key("secret") || new.contains_key("secret-file");
            if let (Some(secret), true, false) = (old.get("secret"), same, says) {
                new.insert("secret".into(), secret.clone());
            }
            for (key, new) in new.iter_mut() {
                if let Some(old) = old.get(key) {
                    keep_secrets(new, old);
                }
            }
        }
        (Value::Array(new), Value::Array(old)) => {
            for new in new {
                let found = old.iter().find(|old| is_same(new, old));
                if let Some(old) = found {
                    keep_secrets(new, old);
                }
            }
        }
        _ => {}
    }
}

/// Whether two tables of a list have one name.
fn is_same(one: &Value, other: &Value) -> bool {
    NAMES.iter().any(|key| one.get(key).is_some() && one.get(key) == other.get(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(iqn: &str, path: &str) -> Value {
        json!({ "iqn": iqn, "unit": [{ "lun": 0, "path": path }] })
    }

    fn document(json: Value) -> Document {
        Document::from_json(json).unwrap()
    }

    fn joined(file: &str, managed: Value) -> Result<Config, ManagedError> {
        let place = config::Place::new(Path::new("/etc"));
        let (file, _) = config::load_text("stag.toml", file, &place).unwrap();
        document(managed).join(file, "stag.toml").map(|(config, _)| config)
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let all = json!({
            "target": [
                // Open to nobody: a list without elements must not get lost.
                { "iqn": "iqn.2026-01.org.example:a", "acl": [], "unit": [{ "lun": 0, "path": "mem:1M", "iops": 5 }] },
                { "iqn": "iqn.2026-01.org.example:b", "auth": { "users": [{ "name": "x", "secret": "twelve-bytes-\"\n" }] },
                  "acl": [{ "initiator": "iqn.2026-01.org.example:*", "luns": [{ "lun": 0, "ro": true }] }] },
            ],
            "export": [{ "name": "/data", "path": "mem:1M", "client": [{ "network": "*", "ro": true }] }],
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        assert_eq!(Document::read(&path).unwrap(), Document::default());
        let written = document(all);
        written.write(&path).unwrap();
        assert_eq!(Document::read(&path).unwrap(), written);
        assert!(document(json!({ "target": [null] })).write(&path).unwrap_err().contains("null"));
        assert_eq!(Document::read(&path).unwrap(), written, "a failed write changes nothing");
        std::fs::write(&path, "[[target").unwrap();
        assert!(matches!(Document::read(&path), Err(ManagedError::Unusable { .. })));
    }

    #[test]
    fn a_document_that_the_next_start_could_not_read_is_refused() {
        let large =
            |bytes: usize| document(json!({ "target": [{ "iqn": "t", "alias": "x".repeat(bytes) }] }));
        let most = usize::try_from(config::MAX_FILE).unwrap();
        assert!(large(most).text().err().unwrap().contains("more than 8 MiB"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.toml");
        large(most - 1000).write(&path).unwrap();
        assert!(Document::read(&path).is_ok());
    }

    #[test]
    fn a_text_that_says_something_else_is_no_text_of_the_document() {
        let all = json!({ "target": [{ "iqn": "t", "x": [1, -2.5, true, "a", {}], "y": 0x7fff_ffff_ffff_ffff_i64 }] });
        let this = document(all);
        let text = this.written().unwrap();
        assert!(this.read_again(&text).is_ok(), "{}", *text);
        for (from, to) in
            [("true", "false"), ("-2.5", "-2.25"), ("1,", "1.0,"), ("\"a\"", "\"b\""), ("x =", "z =")]
        {
            let other = text.replacen(from, to, 1);
            assert!(other != *text && this.read_again(&other).is_err(), "{other}");
        }
        assert!(this.read_again(&format!("{}\n[[target]]\n", *text)).is_err());
        assert!(this.read_again("").is_err());
    }

    #[test]
    fn both_parts_are_served_and_each_can_be_told_from_the_other() {
        let file = "[[target]]\niqn = \"iqn.2026-01.org.example:f\"\n[[target.unit]]\nlun = 0\npath = \"/srv/f\"\n\
                    [[export]]\nname = \"/f\"\npath = \"mem:1M\"\n";
        let managed = json!({
            "target": [target("iqn.2026-01.org.example:M", "m.img")],
            "export": [{ "name": "/m", "path": "mem:1M" }],
        });
        let config = joined(file, managed.clone()).unwrap();
        assert_eq!((config.targets.len(), config.exports.len()), (2, 2));
        let below = path().unwrap().with_file_name("m.img");
        assert_eq!(config.targets[1].units[0].spec.backing.path(), Some(below.as_path()));
        let left = document(managed).without(&config);
        assert_eq!(
            (left.targets[0].iqn.as_str(), left.exports[0].name.as_str()),
            ("iqn.2026-01.org.example:f", "/f")
        );
        assert_eq!((left.targets.len(), left.exports.len()), (1, 1));
    }

    #[test]
    fn what_is_taken_apart_and_joined_again_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "correct horse battery").unwrap();
        let users = json!([{ "name": "a", "secret-file": secret }]);
        let mut managed = target("iqn.2026-01.org.example:M", "mem:1M");
        managed["auth"] = json!({ "users": users });
        let managed = json!({ "target": [managed] });
        let config = joined("", managed.clone()).unwrap();
        assert_eq!(config.secret_files, [secret]);
        let document = document(managed);
        assert_eq!(document.join(document.without(&config), "stag.toml").unwrap().0, config);
    }

    #[test]
    fn the_same_in_both_is_an_error_that_names_both_places() {
        let file = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"/srv/a\"\n\
                    [[export]]\nname = \"/x\"\npath = \"/srv/tree\"\n";
        for (managed, what) in [
            (
                json!({ "target": [target("iqn.2026-01.org.example:T", "mem:1M")] }),
                "target iqn.2026-01.org.example:T",
            ),
            (json!({ "target": [target("iqn.2026-01.org.example:u", "/srv/a")] }), "/srv/a"),
            (json!({ "export": [{ "name": "/x", "path": "mem:1M" }] }), "export /x"),
            (json!({ "export": [{ "name": "/y", "path": "/srv/tree", "async": true }] }), "async"),
        ] {
            let error = joined(file, managed).unwrap_err();
            assert!(matches!(error, ManagedError::Conflict(_)), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(what) && text.contains("stag.toml") && text.contains("managed.toml"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_start_leaves_out_what_the_file_has_too() {
        let file = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"/srv/a\"\n\
                    [[export]]\nname = \"/x\"\npath = \"/srv/tree\"\n";
        let (file, _) = config::load_text("stag.toml", file, &config::Place::new(Path::new("/etc"))).unwrap();
        let managed = |more: Value| {
            let other = target("iqn.2026-01.org.example:u", "mem:1M");
            document(json!({ "target": [more, other], "export": [{ "name": "/x", "path": "mem:1M" }] }))
        };
        let mut both = managed(target("iqn.2026-01.org.example:T", "mem:1M"));
        let config = both.join_at_start(file.clone(), "stag.toml").unwrap();
        assert_eq!(config.targets[0], file.targets[0]);
        assert_eq!((config.targets.len(), &config.exports), (2, &file.exports));
        let told: Vec<String> = both.not_served().collect();
        assert!(
            told.len() == 2 && told[0].starts_with("/x of") && told[1].contains("example:t of"),
            "{told:?}"
        );
        assert_eq!(both.targets().into_iter().collect::<Vec<_>>(), ["iqn.2026-01.org.example:u"]);
        // The file keeps its target, and the document stays whole.
        assert_eq!(both.without(&config), file);
        assert_eq!(both.shown()["target"].as_array().unwrap().len(), 2);
        both.serve_all();
        assert!(matches!(both.join(file.clone(), "stag.toml"), Err(ManagedError::Conflict(_))));
        // Other conflicts have no side that is right.
        let mut same_file = managed(target("iqn.2026-01.org.example:v", "/srv/a"));
        assert!(same_file.join_at_start(file, "stag.toml").is_err());
    }

    #[test]
    fn a_table_that_stands_alone_is_found_as_one_in_a_list() {
        let alone = json!({ "target": { "iqn": "iqn.2026-01.org.example:t", "unit": { "lun": 0, "path": "mem:1M" } } });
        let document = document(alone.clone());
        assert!(document.targets().contains("iqn.2026-01.org.example:t"));
        assert_eq!(document.shown()["target"][0]["unit"][0]["lun"], 0);
        assert_eq!(document.without(&joined("", alone).unwrap()).targets, []);
        assert_eq!(Document::from_toml(&document.text().unwrap()).unwrap(), document);
    }

    #[test]
    fn only_targets_and_exports_are_managed_and_groups_are_those_of_the_file() {
        for managed in
            [json!({ "cores": 1 }), json!({ "http": { "listen": "127.0.0.1" } }), json!({ "portal": [] })]
        {
            let lines = joined("", managed).unwrap_err().lines();
            assert!(lines.contains("the managed document knows no"), "{lines}");
        }
        let grouped = json!({ "target": [{ "iqn": "iqn.2026-01.org.example:t", "groups": [2] }] });
        let portal = "[[portal]]\nlisten = \"192.0.2.1\"\ngroup = 2\n";
        assert!(joined("", grouped.clone()).unwrap_err().lines().contains("no portal has group 2"));
        assert_eq!(joined(portal, grouped).unwrap().targets[0].groups, [2]);
    }

    #[test]
    fn secrets_are_never_shown_and_stay_where_they_are_left_out() {
        let secret = "correct horse battery";
        let with = |users: Value| {
            json!({ "target": [{ "iqn": "t", "auth": { "users": users },
            "acl": [{ "initiator": "i", "auth": { "users": [{ "name": "b", "secret": secret }] } }] }] })
        };
        let before = document(with(json!([{ "name": "a", "secret": secret }])));
        let shown = before.shown();
        assert!(!shown.to_string().contains(secret), "{shown}");
        assert_eq!(document(shown).with_secrets_of(&before), before);
        let others = with(json!([{ "name": "c" }, { "name": "a", "secret-file": "f" }]));
        let after = document(others.clone()).with_secrets_of(&before);
        assert_eq!(after.tables["target"][0]["auth"], others["target"][0]["auth"]);
        let mut wiped = with(json!([]));
        wipe(&mut wiped);
        assert!(!wiped.to_string().contains(secret));
    }
}
