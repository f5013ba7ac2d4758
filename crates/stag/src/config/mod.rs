//! The configuration file: reads TOML into a checked [`Config`], and says of every mistake where it is and what to write
//! instead. Must never open a unit or a socket.

mod alua;
mod auth;
mod decode;
pub mod iser;
mod isns;
mod limits;
mod model;
mod problem;
mod reader;
mod redirect;
mod summary;

#[cfg(test)]
mod tests;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use miette::NamedSource;
use toml::de::DeTable;

pub use decode::{ISCSI_PORT, address};
pub use model::{
    Acl, AclLun, Alua, AluaGroup, Auth, ChapHash, Config, Crc, Credential, Iser, Isns, Limits, Lun, Portal,
    Target, Transports,
};
pub use problem::{ConfigErrors, Shown};
pub use summary::summary;

use auth::Place;
use problem::{Problem, Problems};

use crate::exit::Exit;

/// The largest file that is read, bytes.
const MAX_FILE: u64 = 16 << 20;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{path} cannot be read: {error}")]
    #[diagnostic(help("write the path of a configuration file; docs/stag.toml.example is one"))]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The file has mistakes.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Wrong(#[from] ConfigErrors),
}

/// Reads and checks the file at `path`. Warnings come with the configuration.
///
/// # Errors
/// All mistakes of the file at once.
pub fn load(path: &Path) -> Result<(Config, Vec<Shown>), LoadError> {
    let name = path.display().to_string();
    let read = || -> std::io::Result<(String, bool)> {
        let about = std::fs::metadata(path)?;
        if about.len() > MAX_FILE {
            return Err(std::io::Error::other(format!("it has more than {} MiB", MAX_FILE >> 20)));
        }
        Ok((std::fs::read_to_string(path)?, about.permissions().mode() & 0o077 != 0))
    };
    let (text, open_to_others) =
        read().map_err(|error| LoadError::Unreadable { path: name.clone(), error })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    Ok(load_text(&name, text, directory, open_to_others)?)
}

/// [`load`] for a text that was read from the file `name`. `directory` is where its files of secrets are.
///
/// # Errors
/// All mistakes of the text at once.
pub fn load_text(
    name: &str,
    text: String,
    directory: &Path,
    open_to_others: bool,
) -> Result<(Config, Vec<Shown>), ConfigErrors> {
    let (config, problems) = parse(&text, &Place { directory, open_to_others });
    let source = Arc::new(NamedSource::new(name, text).with_language("toml"));
    let shown =
        |problems: Vec<Problem>| problems.into_iter().map(|problem| Shown::new(problem, &source)).collect();
    match config {
        Some(config) => Ok((config, shown(problems))),
        None => Err(ConfigErrors { path: name.to_owned(), errors: shown(problems) }),
    }
}

/// [`load`] for a command: shows warnings and mistakes on stderr.
///
/// # Errors
/// What to end with.
pub fn load_or_show(path: &Path) -> Result<Config, Exit> {
    match load(path) {
        Ok((config, warnings)) => {
            for warning in warnings {
                eprintln!("{:?}", miette::Report::new(warning));
            }
            Ok(config)
        }
        Err(error) => {
            eprintln!("{:?}", miette::Report::new(error));
            Err(Exit::Config)
        }
    }
}

/// Reads and checks `text`: a configuration with warnings, or none with errors (and warnings).
fn parse(text: &str, place: &Place<'_>) -> (Option<Config>, Vec<Problem>) {
    let mut problems = Problems::default();
    let config = match DeTable::parse(text) {
        Ok(document) => Some(decode::document(&document, place, &mut problems)),
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            let (what, instead) = explain(error.message());
            problems.error(&span, what, instead);
            None
        }
    };
    (config.filter(|_| !problems.fatal()), problems.into_sorted())
}

/// The TOML parser's words, with what to do about the common ones.
fn explain(message: &str) -> (String, &'static str) {
    let instead = if message.contains("duplicate key") {
        "leave one of them out; several tables of a kind are written with double brackets, as [[target]]"
    } else if message.contains("string values must be quoted") || message.contains("invalid string") {
        "put text in quotes: key = \"text\""
    } else {
        "see docs/stag.toml.example for how it is written"
    };
    (format!("this is not TOML: {message}"), instead)
}
