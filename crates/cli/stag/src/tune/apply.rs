//! Writes the chosen settings into another program's file: changes the value of an existing line,
//! and adds missing lines. The file is replaced atomically, and a stag configuration only if the
//! new text passes its checks.

use std::io;
use std::path::{Path, PathBuf};

use super::report::Report;
use super::words;

/// The reason why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It cannot be read or written.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    /// It is not a valid configuration, or would not be one any more.
    #[error("{0}")]
    Config(String),
}

/// Whether the file is there and can be read.
pub fn readable(path: &Path) -> Result<(), ApplyError> {
    read(path).map(drop)
}

fn read(path: &Path) -> Result<String, ApplyError> {
    std::fs::read_to_string(path).map_err(|error| ApplyError::Io { path: path.to_owned(), error })
}

/// Writes the chosen settings into the file. Returns a text about what was done.
pub fn apply(path: &Path, report: &Report) -> Result<String, ApplyError> {
    let text = read(path)?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let (lines, changed) = if is_toml {
        let lines = words::limits(&report.plan);
        let changed = set_in_table(&text, "limits", &lines);
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        crate::check_config_text(&changed, directory.unwrap_or(Path::new(".")))
            .map_err(ApplyError::Config)?;
        (lines, changed)
    } else {
        let lines = words::iscsid(&report.plan, report.url.transport);
        let changed = set_lines(&text, &lines);
        (lines, changed)
    };
    if changed == text {
        return Ok("it says so already".to_owned());
    }
    replace(path, &changed).map_err(|error| ApplyError::Io { path: path.to_owned(), error })?;
    let what = if is_toml { "values of [limits]" } else { "values" };
    Ok(format!("{} {what} are as chosen now", lines.len()))
}

/// Replaces a file atomically by one with the same permissions.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A symbolic link stays one.
    let path = std::fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = (|| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        file.set_permissions(std::fs::metadata(&path)?.permissions())?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    })();
    if written.is_err() {
        // The partial file is useless.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// The key of a line `key = value`, if it is one and no comment.
fn key(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with(['#', ';', '[']) {
        return None;
    }
    line.split_once('=').map(|(key, _)| key.trim())
}

/// Sets `key = value` lines of a file without tables.
fn set_lines(text: &str, values: &[(String, String)]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut missing = Vec::new();
    for (name, value) in values {
        let wanted = format!("{name} = {value}");
        let mut found = false;
        for line in lines.iter_mut().filter(|line| key(line) == Some(name)) {
            // The last of several lines counts; so all get the new value.
            line.clone_from(&wanted);
            found = true;
        }
        if !found {
            missing.push(wanted);
        }
    }
    lines.extend(missing);
    lines.join("\n") + "\n"
}

/// Sets `key = value` lines of a table of a TOML file.
fn set_in_table(text: &str, table: &str, values: &[(String, String)]) -> String {
    let head = |line: &str| {
        let line = line.split('#').next().unwrap_or("").trim();
        line.strip_prefix('[')?.strip_suffix(']').map(|name| name.trim().to_owned())
    };
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = match lines.iter().position(|line| head(line).as_deref() == Some(table)) {
        Some(at) => at,
        None => {
            if lines.last().is_some_and(|line| !line.trim().is_empty()) {
                lines.push(String::new());
            }
            lines.push(format!("[{table}]"));
            lines.len() - 1
        }
    };
    let end = (at + 1..lines.len()).find(|i| lines[*i].trim_start().starts_with('[')).unwrap_or(lines.len());
    let mut missing = Vec::new();
    for (name, value) in values {
        match (at + 1..end).find(|i| key(&lines[*i]) == Some(name)) {
            Some(i) => lines[i] = format!("{name} = {value}"),
            None => missing.push(format!("{name} = {value}")),
        }
    }
    lines.splice(at + 1..at + 1, missing);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn lines_that_are_there_change_and_others_are_added() {
        let before =
            "# a comment\nnode.startup = manual\n# node.session.cmds_max = 1\nnode.session.cmds_max = 128\n";
        let after = set_lines(
            before,
            &values(&[("node.session.cmds_max", "256"), ("node.session.queue_depth", "64")]),
        );
        assert_eq!(
            after,
            "# a comment\nnode.startup = manual\n# node.session.cmds_max = 1\nnode.session.cmds_max = 256\nnode.session.queue_depth = 64\n"
        );
        assert_eq!(set_lines(&after, &values(&[("node.session.queue_depth", "64")])), after);
    }

    #[test]
    fn only_the_table_that_is_meant_changes() {
        let before = "queue-depth = 1\n[limits] # bounds\nqueue-depth = 16\n\n[[target]]\niqn = \"x\"\n[other]\nmax-burst = 7\n";
        let after =
            set_in_table(before, "limits", &values(&[("queue-depth", "64"), ("max-burst", "1048576")]));
        assert_eq!(
            after,
            "queue-depth = 1\n[limits] # bounds\nmax-burst = 1048576\nqueue-depth = 64\n\n[[target]]\niqn = \"x\"\n[other]\nmax-burst = 7\n"
        );
        let without = set_in_table("a = 1", "limits", &values(&[("queue-depth", "64")]));
        assert_eq!(without, "a = 1\n\n[limits]\nqueue-depth = 64\n");
    }

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_nothing_is_left_behind() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("iscsid.conf");
        std::fs::write(&file, "a = 1\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        replace(&file, "a = 2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a = 2\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
