//! The folders of the workspace's crates, for tests that read the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the whole project.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The crates of the product and of its tools: each one's name and folder.
pub fn crates() -> BTreeMap<String, PathBuf> {
    [
        "crates/admin",
        "crates/base",
        "crates/protocols",
        "crates/runtime",
        "crates/storage",
        "crates/server",
        "crates/client",
        "crates/cli",
        "objects",
        "tools",
    ]
    .into_iter()
    .flat_map(|house| fs::read_dir(workspace().join(house)).unwrap_or_else(|e| panic!("{house}: {e}")))
    .map(|entry| entry.expect("a folder can be listed").path())
    .filter(|path| path.join("Cargo.toml").exists())
    .map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path))
    .collect()
}
