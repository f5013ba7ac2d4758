//! The audit log of changes: `audit.log` in the state directory, one JSON object a line, appended
//! and made durable. Knows no verb and no secret: callers say what is written.
//!
//! A change has two lines: what was asked, before anything is done, and what became of it. A crash
//! in between leaves the first alone.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::state;

/// Size from which on a file is moved to `audit.log.1`, which replaces the one before: so both
/// together are bounded.
const LARGEST: u64 = 8 << 20;
/// The longest plan, bytes. A longer one is left out.
const LONGEST: usize = 64 << 10;
/// The longest result, characters. A change may be refused for thousands of reasons at once.
const LONGEST_RESULT: usize = 4096;
/// Bytes of each file that are read to show the latest changes.
#[cfg(feature = "http")]
const TAIL: u64 = 1 << 20;

/// The audit log of a daemon.
pub struct Audit {
    path: Result<PathBuf, String>,
    /// Held while a line is written.
    writing: Mutex<u64>,
}

/// A change that was asked for, and is in the log.
pub struct Asked {
    number: u64,
    who: String,
    what: String,
}

impl Audit {
    /// The log in the state directory.
    pub fn new() -> Self {
        let directory = state::directory().ok_or_else(|| "there is no state directory".to_owned());
        Self::at(directory.map(|directory| directory.join("audit.log")))
    }

    fn at(path: Result<PathBuf, String>) -> Self {
        Self { path, writing: Mutex::new(0) }
    }

    /// Writes that `who` (a token or a user) asks from `whence` for `what`.
    ///
    /// # Errors
    /// The line cannot be kept: the change must not be made then.
    pub fn asked(&self, who: &str, whence: &str, what: &str) -> Result<Asked, String> {
        let mut number = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        *number += 1;
        let line = json!({ "who": who, "from": whence, "what": what });
        self.write(*number, "asked", line)?;
        Ok(Asked { number: *number, who: who.to_owned(), what: what.to_owned() })
    }

    /// Writes what became of a change: `done`, or why not; its plan; and the generation that it has
    /// made. It is a line of the log too, without the plan.
    pub fn ended(&self, asked: &Asked, result: &str, plan: Option<&Value>, generation: Option<u64>) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let shortened =
            result.char_indices().nth(LONGEST_RESULT).map(|(end, _)| format!("{}…", &result[..end]));
        let result = shortened.as_deref().unwrap_or(result);
        let mut line = json!({ "result": result });
        if let Some(generation) = generation {
            line["generation"] = json!(generation);
        }
        if let Some(plan) = plan.filter(|plan| plan.to_string().len() < LONGEST) {
            line["plan"] = plan.clone();
        }
        let Asked { number, who, what: asked } = asked;
        if let Err(error) = self.write(*number, "ended", line) {
            tracing::error!(%error, "the end of a change is not in the audit log");
        }
        tracing::info!(target: iscsi_server::audit::TARGET, what = "change", who, asked, result, generation, "a change has ended");
    }

    /// The latest changes, the newest first, `most` at most: the members of both lines together,
    /// with the time when it was asked for. `result` is missing while a change is being made, and
    /// where a crash came between.
    ///
    /// # Errors
    /// The log cannot be read.
    #[cfg(feature = "http")]
    pub fn latest(&self, most: usize) -> Result<Vec<Value>, String> {
        let path = self.path.clone()?;
        let read = |path: &Path| match tail(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(|error| format!("{} cannot be read: {error}", path.display())),
        };
        let (text, older) = {
            // A line that is written meanwhile might move the file.
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            (read(&path)?, read(&moved(&path))?)
        };
        let mut ends: std::collections::HashMap<String, Map<String, Value>> = Default::default();
        let mut found = Vec::new();
        for line in text.lines().rev().chain(older.lines().rev()) {
            // The first line of the tail may be cut off.
            let Ok(Value::Object(mut line)) = serde_json::from_str(line) else { continue };
            let change = line.get("change").and_then(Value::as_str).unwrap_or_default().to_owned();
            match line.remove("event").as_ref().and_then(Value::as_str) {
                Some("ended") => drop(ends.insert(change, line)),
                Some("asked") => {
                    for (key, value) in ends.remove(&change).into_iter().flatten() {
                        line.entry(key).or_insert(value);
                    }
                    found.push(Value::Object(line));
                }
                _ => {}
            }
            if found.len() >= most {
                break;
            }
        }
        Ok(found)
    }

    fn write(&self, number: u64, event: &str, line: Value) -> Result<(), String> {
        let path = self.path.clone()?;
        let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        state::make_folder(&path)?;
        let mut whole = Map::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        whole.insert("time_unix_s".into(), json!(now.as_millis() as f64 / 1e3));
        whole.insert("event".into(), event.into());
        // Of one daemon's changes, which of them.
        whole.insert("change".into(), format!("{}-{number}", std::process::id()).into());
        if let Value::Object(rest) = line {
            whole.extend(rest);
        }
        append(&path, &format!("{}\n", Value::Object(whole))).map_err(failed)
    }
}

/// The end of a file, [`TAIL`] bytes at most.
#[cfg(feature = "http")]
fn tail(path: &Path) -> io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where the file at `path` goes when it is full.
fn moved(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Opens the log, which no other daemon writes or moves until the file is closed. While one takes
/// over, there are two.
fn alone(path: &Path) -> io::Result<(File, u64)> {
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let number = |about: &Metadata| (about.dev(), about.ino());
    loop {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(nofollow)
            .open(path)?;
        file.lock()?;
        let own = file.metadata()?;
        match std::fs::symlink_metadata(path) {
            Ok(now) if number(&now) == number(&own) => return Ok((file, own.len())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // It was moved before it was locked.
            _ => {}
        }
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let (mut file, mut length) = alone(path)?;
    if length >= LARGEST {
        std::fs::rename(path, moved(path))?;
        (file, length) = alone(path)?;
    }
    // A full disk or a power cut may have cut the last line off.
    let mut last = *b"\n";
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    let end = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{end}{line}").as_bytes())?;
    file.sync_data()?;
    match path.parent() {
        // Its name is to last, too.
        Some(folder) if length == 0 => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_change_is_in_the_log_before_it_is_made_and_once_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::at(Ok(path.clone()));
        let asked = audit.asked("token ops", "192.0.2.1:80", "PUT /api/v1/x\n{}").unwrap();
        assert_eq!(lines(&path).len(), 1);
        audit.ended(&asked, "done", Some(&json!({ "changes": [] })), None);
        let all = lines(&path);
        assert_eq!((&all[0]["event"], &all[1]["event"]), (&json!("asked"), &json!("ended")));
        assert_eq!(all[0]["change"], all[1]["change"]);
        assert_eq!((&all[0]["who"], &all[1]["result"]), (&json!("token ops"), &json!("done")));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[cfg(feature = "http")]
    #[test]
    fn the_latest_changes_are_shown_each_with_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::at(Ok(path.clone()));
        assert_eq!(audit.latest(5).unwrap(), Vec::<Value>::new());
        std::fs::write(&path, "cut off\n").unwrap();
        let first = audit.asked("token a", "192.0.2.1:80", "PUT /x").unwrap();
        audit.ended(&first, "done", Some(&json!({ "changes": [] })), Some(7));
        audit.asked("token b", "192.0.2.2:80", "DELETE /y").unwrap();
        let all = audit.latest(5).unwrap();
        assert_eq!((&all[0]["who"], all[0].get("result")), (&json!("token b"), None));
        assert_eq!((&all[1]["who"], &all[1]["result"]), (&json!("token a"), &json!("done")));
        assert_eq!(all[1]["generation"], 7);
        assert!(all[1].get("plan").is_some() && all[1].get("event").is_none(), "{all:?}");
        assert_eq!(audit.latest(1).unwrap().len(), 1);
    }

    #[test]
    fn the_log_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::at(Ok(path.clone()));
        std::fs::write(&path, vec![b'\n'; LARGEST as usize]).unwrap();
        audit.asked("a", "b", "c").unwrap();
        assert_eq!(lines(&path).len(), 1);
        assert_eq!(std::fs::metadata(dir.path().join("audit.log.1")).unwrap().len(), LARGEST);
        let asked = audit.asked("a", "b", "c").unwrap();
        audit.ended(&asked, "done", Some(&json!("x".repeat(LONGEST))), None);
        assert!(std::fs::metadata(&path).unwrap().len() < 2000);
        audit.ended(&asked, &"é".repeat(1 << 20), None, None);
        let result = lines(&path)[3]["result"].as_str().unwrap().to_owned();
        assert!(result.starts_with('é') && result.chars().count() == LONGEST_RESULT + 1, "{}", result.len());
    }

    #[cfg(feature = "http")]
    #[test]
    fn changes_before_the_file_was_moved_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::at(Ok(path.clone()));
        std::fs::write(&path, vec![b'\n'; LARGEST as usize - 1]).unwrap();
        let asked = audit.asked("token a", "192.0.2.1:80", "PUT /x").unwrap();
        audit.ended(&asked, "done", None, None);
        assert_eq!((lines(&path).len(), &lines(&path)[0]["event"]), (1, &json!("ended")));
        let all = audit.latest(5).unwrap();
        assert_eq!((all.len(), &all[0]["who"], &all[0]["result"]), (1, &json!("token a"), &json!("done")));
    }

    #[test]
    fn a_log_that_another_daemon_moves_is_not_moved_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, vec![b'\n'; LARGEST as usize]).unwrap();
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        std::thread::scope(|scope| {
            let audit = Audit::at(Ok(path.clone()));
            let writing = scope.spawn(move || audit.asked("a", "b", "c").map(drop));
            std::fs::rename(&path, moved(&path)).unwrap();
            let mut new = OpenOptions::new().append(true).create(true).open(&path).unwrap();
            new.write_all(b"{}\n").unwrap();
            other.unlock().unwrap();
            writing.join().unwrap().unwrap();
        });
        assert_eq!(std::fs::metadata(moved(&path)).unwrap().len(), LARGEST);
        assert_eq!(lines(&path).len(), 2);
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_take_the_next_one_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "{\"event\":\"asked\",\"wh").unwrap();
        let audit = Audit::at(Ok(path.clone()));
        let asked = audit.asked("a", "b", "c").unwrap();
        audit.ended(&asked, "done", None, None);
        let text = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<Value> =
            text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<&Value> = whole.iter().map(|line| &line["event"]).collect();
        assert_eq!(events, ["asked", "ended"], "{text}");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(Audit::at(Ok(path)).asked("a", "b", "c").is_err());
        assert!(!dir.path().join("elsewhere").exists());
        assert!(Audit::at(Err("there is no state directory".into())).asked("a", "b", "c").is_err());
    }
}
