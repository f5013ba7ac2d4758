//! The place a configuration was read from, on which some of its values depend.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// The configuration file's directory and permissions, on which its paths and secrets depend.
pub struct Place<'a> {
    /// The directory that relative paths start from.
    pub directory: &'a Path,
    /// Whether others may read the configuration itself.
    pub open_to_others: bool,
    /// The files of secrets that have been read.
    pub secret_files: RefCell<Vec<PathBuf>>,
    /// Whether this process will serve the configuration. A process that only checks it need not be
    /// able to read all secrets.
    pub serves: bool,
    /// The portal groups, if this is the managed document, which has none of its own.
    pub managed: Option<&'a [u16]>,
}

impl<'a> Place<'a> {
    /// A configuration in `directory` that this process serves, and that others may not read.
    pub fn new(directory: &'a Path) -> Self {
        Self {
            directory,
            open_to_others: false,
            secret_files: RefCell::default(),
            serves: true,
            managed: None,
        }
    }
}
