//! `stag import`: makes a configuration of another target's: LIO's saveconfig.json or tgt's
//! targets.conf. Units keep the names by which initiators know them. Whatever would let somebody in
//! who was kept out is left out, and said.

mod lio;
mod tgt;
mod written;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::args::Import;
use crate::config;
use crate::exit::Exit;
use crate::out;

/// The reason why nothing is imported.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, std::io::Error),
    #[error("{path} is no {format}: {what}")]
    Wrong { path: String, format: &'static str, what: String },
}

/// CHAP: users' names and secrets, and what the target proves itself with.
#[derive(Clone, Debug, Default, PartialEq)]
struct Chap {
    users: Vec<(String, String)>,
    mutual: Option<(String, String)>,
}

/// A unit: its number, path, and options as they are written.
#[derive(Clone, Debug, Default, PartialEq)]
struct Unit {
    lun: u16,
    path: String,
    options: Vec<(&'static str, toml::Value)>,
}

/// The rights of one initiator, or with `*` of every one.
#[derive(Clone, Debug, Default, PartialEq)]
struct Acl {
    initiator: String,
    auth: Option<Chap>,
    /// Unit, the number by which it is seen, and whether it may only be read; `None` for all as
    /// they are.
    luns: Option<Vec<(u16, u16, bool)>>,
    read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Target {
    iqn: String,
    /// `ADDRESS:PORT`.
    portals: Vec<String>,
    auth: Option<Chap>,
    /// Empty for everybody.
    acls: Vec<Acl>,
    units: Vec<Unit>,
}

/// Another target's configuration.
#[derive(Debug, Default)]
struct Imported {
    discovery: Option<Chap>,
    targets: Vec<Target>,
    /// Settings that are not carried over, a sentence each.
    notes: Vec<String>,
}

impl Imported {
    /// Notes become comments, so a line break of a foreign name must not end one.
    fn note(&mut self, what: impl AsRef<str>) {
        let what = what.as_ref().replace(char::is_control, " ");
        if !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }
}

pub fn command(args: &Import) -> Exit {
    crate::secret::forbid_core_dumps();
    let imported = match read(&args.file, args.ignore_addresses) {
        Ok(imported) => imported,
        Err(error) => {
            say!("stag: {error}");
            return Exit::Config;
        }
    };
    imported.notes.iter().for_each(|note| out::warn(format_args!("not carried over: {note}")));
    let text = written::text(&imported);
    let exit = match &args.output {
        None => out::print(&text),
        Some(path) => match create(path, &text) {
            Ok(()) => Exit::Done,
            Err(error) => {
                say!("stag: {} cannot be created: {error}", path.display());
                Exit::Failed
            }
        },
    };
    // What the other target allowed need not be allowed here: short secrets, for example.
    let place = config::Place { serves: false, ..config::Place::new(Path::new("/")) };
    match config::load_text("the configuration", &text, &place) {
        Ok(_) => exit,
        Err(errors) => {
            say!("{:?}", miette::Report::new(errors));
            exit.or(Exit::Config)
        }
    }
}

fn read(path: &Path, ignore_addresses: bool) -> Result<Imported, ImportError> {
    let (text, _) =
        config::read(path).map_err(|error| ImportError::Unreadable(path.display().to_string(), error))?;
    let (format, imported) = match text.trim_start().starts_with('{') {
        true => ("saveconfig.json", lio::read(&text)),
        false => ("targets.conf", tgt::read(&text, path, ignore_addresses)),
    };
    imported.map_err(|what| ImportError::Wrong { path: path.display().to_string(), format, what })
}

/// Creates the file for its owner alone, since it may have secrets. One that is there stays.
fn create(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
