//! The configuration file: reads TOML into a checked [`Config`], and reports each mistake with its
//! place and the text to write instead. Must never open a unit or a socket.

mod alua;
mod auth;
mod decode;
mod exports;
pub mod gateways;
mod join;
mod mask;
mod model;
mod place;
mod problem;
mod reader;
mod redirect;
pub mod reference;
pub mod settings;
mod summary;
pub mod value;
pub mod words;

#[cfg(test)]
mod tests;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use miette::NamedSource;
use toml::Spanned;
use toml::de::DeTable;
use zeroize::Zeroizing;

pub use decode::{HTTP_PORT, ISCSI_PORT, LINK_PORT, LUNS, address, address_or};
#[cfg(test)]
pub use model::MOST_UNITS_WITH_STAGES;
pub use model::{
    Acl, Alua, AluaGroup, Auth, Client, Config, Crc, Daemon, Export, GatewayMember, Gateways, Http, Isns,
    Lun, Portal, Target, Transports, lets_in,
};
pub use problem::{ConfigErrors, Problems, Shown};
pub use summary::summary;

pub use place::Place;
use problem::Problem;

use crate::exit::Exit;
use crate::out;

/// The largest file that is read, bytes.
pub const MAX_FILE: u64 = 8 << 20;

/// The reason why there is no configuration.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{path} cannot be read: {error}")]
    #[diagnostic(help("write the path of a configuration file; dist/stag.toml.example is one"))]
    Unreadable { path: String, error: std::io::Error },
    /// The file has mistakes.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Wrong(#[from] ConfigErrors),
}

/// A configuration's text, which may hold secrets: zeroed when it is dropped.
pub type Text = Zeroizing<String>;

/// Reads the file at `path`, and whether others may read it.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> std::io::Result<(Text, bool)> {
    let file = std::fs::File::open(path)?;
    let about = file.metadata()?;
    let too_long = || std::io::Error::other(format!("it has more than {} MiB", MAX_FILE >> 20));
    if about.len() > MAX_FILE {
        return Err(too_long());
    }
    // Room from the beginning: a string that grows leaves copies behind.
    let room = usize::try_from(about.len()).unwrap_or(0) + 1;
    let mut text = Zeroizing::new(String::with_capacity(room));
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE {
        true => Err(too_long()),
        false => Ok((text, about.permissions().mode() & 0o077 != 0)),
    }
}

/// Reads and checks the file at `path`. Returns warnings with the configuration. `serves`: this
/// process is going to serve it.
///
/// # Errors
/// All mistakes of the file at once.
pub fn load(path: &Path, serves: bool) -> Result<(Config, Vec<Shown>), LoadError> {
    // The file may hold secrets, and name files that do.
    crate::secret::forbid_core_dumps();
    let name = path.display().to_string();
    let (text, open_to_others) =
        read(path).map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    // Absolute, since a running daemon that gets this file has another working directory.
    let file =
        std::path::absolute(path).map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    Ok(load_text(&name, &text, &Place { open_to_others, serves, ..Place::new(directory) })?)
}

/// [`load`] for a text that was read from the file `name`.
///
/// # Errors
/// All mistakes of the text at once.
pub fn load_text(name: &str, text: &str, place: &Place<'_>) -> Result<(Config, Vec<Shown>), ConfigErrors> {
    loaded(name, text, parse(text, place))
}

/// As [`load_text`], of a text that has been parsed.
///
/// # Errors
/// Its mistakes.
pub fn load_document(
    name: &str,
    text: &str,
    document: &Spanned<DeTable<'_>>,
    place: &Place<'_>,
) -> Result<(Config, Vec<Shown>), ConfigErrors> {
    loaded(name, text, decoded(document, place))
}

fn loaded(
    name: &str,
    text: &str,
    (config, problems): (Option<Config>, Vec<Problem>),
) -> Result<(Config, Vec<Shown>), ConfigErrors> {
    let shown = |problems: Vec<Problem>| -> Vec<Shown> {
        if problems.is_empty() {
            return Vec::new();
        }
        let source = Arc::new(NamedSource::new(name, mask::mask(text)).with_language("toml"));
        problems.into_iter().map(|problem| Shown::new(problem, &source)).collect()
    };
    match config {
        Some(config) => Ok((config, shown(problems))),
        None => Err(ConfigErrors { path: name.to_owned(), errors: shown(problems) }),
    }
}

/// [`load`] for a command: shows warnings and mistakes on stderr.
///
/// # Errors
/// The exit status.
pub fn load_or_show(path: &Path, serves: bool) -> Result<Config, Exit> {
    match load(path, serves) {
        Ok((config, warnings)) => {
            for warning in warnings {
                out::warn(format_args!("{:?}", miette::Report::new(warning)));
            }
            Ok(config)
        }
        Err(error) => {
            say!("{:?}", miette::Report::new(error));
            Err(Exit::Config)
        }
    }
}

/// Reads and checks `text`: a configuration with warnings, or none with errors (and warnings).
fn parse(text: &str, place: &Place<'_>) -> (Option<Config>, Vec<Problem>) {
    match DeTable::parse(text) {
        Ok(document) => decoded(&document, place),
        Err(error) => {
            let mut problems = Problems::default();
            let span = error.span().unwrap_or(0..0);
            let (what, instead) = explain(error.message());
            problems.error(&span, what, instead);
            (None, problems.into_sorted())
        }
    }
}

fn decoded(document: &Spanned<DeTable<'_>>, place: &Place<'_>) -> (Option<Config>, Vec<Problem>) {
    let mut problems = Problems::default();
    let config = decode::document(document, place, &mut problems);
    ((!problems.fatal()).then_some(config), problems.into_sorted())
}

/// The TOML parser's words, with what to do about the common ones.
fn explain(message: &str) -> (String, &'static str) {
    let instead = if message.contains("duplicate key") {
        "leave one of them out; several tables of a kind are written with double brackets, as [[target]]"
    } else if message.contains("string values must be quoted") || message.contains("invalid string") {
        "put text in quotes: key = \"text\""
    } else {
        "see dist/stag.toml.example for how it is written"
    };
    (format!("this is not TOML: {message}"), instead)
}
