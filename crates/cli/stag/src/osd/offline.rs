//! Checks and repairs a directory of objects that is not being served.

use std::path::Path;

use objects::store::ObjectStore;
use objects::store::embedded::{EmbeddedStore, Options};
use serde_json::json;

use super::error::OsdError;

/// Checks `path`, and repairs it if that is wanted. Opening it blocks.
///
/// # Errors
/// Its damage, including damage that was repaired.
pub async fn check(path: &Path, repair: bool, as_json: bool) -> Result<String, OsdError> {
    let wrong = |error: &dyn std::fmt::Display| {
        OsdError::wrong(
            error.to_string(),
            "end the daemon that serves it, or name the directory of a store of objects",
        )
    };
    let store = EmbeddedStore::open(path, &Options::default()).map_err(|error| wrong(&error))?;
    let report = store.check(0, repair).await.map_err(|error| wrong(&error))?;
    drop(store);
    let text = if as_json {
        format!(
            "{:#}\n",
            json!({
                "partitions": report.partitions,
                "objects": report.objects,
                "extents": report.extents,
                "wrong": report.wrong,
                "repaired": report.repaired,
                "findings": report.findings,
            })
        )
    } else {
        let looked = format!(
            "{} partitions, {} objects and collections, {} extents",
            report.partitions, report.objects, report.extents
        );
        let mut text: String = report.findings.iter().map(|finding| format!("{finding}\n")).collect();
        let left_out = report.wrong.saturating_sub(report.findings.len() as u64);
        if left_out > 0 {
            text += &format!("… and {left_out} more\n");
        }
        text + &match (report.wrong, report.repaired) {
            (0, _) => format!("all is in order: {looked}\n"),
            (wrong, repaired) => format!("{wrong} things are wrong, {repaired} of them repaired: {looked}\n"),
        }
    };
    if report.wrong == 0 {
        return Ok(text);
    }
    // The damage is the answer; the exit status reports it.
    crate::out::write(text.as_bytes())?;
    Err(match report.wrong - report.repaired.min(report.wrong) {
        0 => OsdError::wrong(format!("{} was not in order", path.display()), "it is now; check it once more"),
        left => OsdError::wrong(
            format!("{}: {left} things are wrong", path.display()),
            if repair { "restore it from a backup or a snapshot" } else { "--repair mends what it can" },
        ),
    })
}
