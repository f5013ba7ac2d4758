//! The group's object: its bytes are the record, one attribute is the record's version, and each
//! member has an attribute for its heartbeat. Blocks. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cluster::codec::{self, DecodeError};
use cluster::{InstanceId, Record, Snapshot, Version};
use rados::{Change, Error, Object};

const VERSION: &str = "stag.version";
const BEAT: &str = "stag.beat.";

/// Why the object was not read or written.
#[derive(Debug)]
pub(super) enum Wrong {
    Rados(Error),
    Record(DecodeError),
    /// It was there before.
    Removed,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rados(error) => error.fmt(f),
            Self::Record(error) => error.fmt(f),
            Self::Removed => f.write_str("the group's object was removed"),
        }
    }
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Rados(error)
    }
}

impl Wrong {
    pub(super) fn errno(&self) -> Option<i32> {
        match self {
            Self::Rados(error) => errno(error),
            Self::Record(_) | Self::Removed => None,
        }
    }
}

/// The error of a call, if it is one.
pub(super) fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::Call { errno, .. } => Some(*errno),
        _ => None,
    }
}

/// Writes a heartbeat, if there is one, and reads the object.
pub(super) fn look(object: &Object, own: InstanceId, beat: Option<u64>) -> Result<Snapshot, Wrong> {
    if let Some(beat) = beat {
        match object.set_attribute(&attribute(own), beat.to_string().as_bytes()) {
            Err(error) if errno(&error) == Some(libc::ENOENT) => return Err(Wrong::Removed),
            written => written?,
        }
    }
    match object.read(codec::MOST)? {
        Some(content) => {
            let record = codec::decode(&content.bytes).map_err(Wrong::Record)?;
            let version = content.attributes.get(VERSION).and_then(|value| number(value));
            let damaged = DecodeError::Damaged { what: "its version", at: 0 };
            let version = Version(version.ok_or(Wrong::Record(damaged))?);
            Ok(Snapshot { version, record, beats: beats(&content.attributes) })
        }
        None if beat.is_some() => Err(Wrong::Removed),
        None => Ok(Snapshot::default()),
    }
}

/// Replaces the record if it still has version `expect`, and removes the heartbeats `known` of
/// instances that the new one does not name.
pub(super) fn change(
    object: &Object,
    (expect, version): (Version, Version),
    record: &Record,
    known: &BTreeSet<InstanceId>,
) -> Result<bool, Error> {
    let (old, new) = (expect.0.to_string(), version.0.to_string());
    let gone = known.iter().filter(|instance| record.member(**instance).is_none());
    let remove: Vec<String> = gone.map(|instance| attribute(*instance)).collect();
    object.change(&Change {
        expect: (expect != Version(0)).then_some((VERSION, old.as_bytes())),
        bytes: &codec::encode(record),
        set: &[(VERSION, new.as_bytes())],
        remove: &remove,
    })
}

fn attribute(instance: InstanceId) -> String {
    format!("{BEAT}{:016x}", instance.0)
}

fn beats(attributes: &BTreeMap<String, Vec<u8>>) -> BTreeMap<InstanceId, u64> {
    let beat = |(name, value): (&String, &Vec<u8>)| {
        let instance = u64::from_str_radix(name.strip_prefix(BEAT)?, 16).ok()?;
        Some((InstanceId(instance), number(value)?))
    };
    attributes.iter().filter_map(beat).collect()
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_are_found_among_other_attributes() {
        let attributes = [
            (attribute(InstanceId(0xAB)), b"17".to_vec()),
            (attribute(InstanceId(u64::MAX)), b"3".to_vec()),
            (attribute(InstanceId(2)), b"many".to_vec()),
            (VERSION.to_owned(), b"9".to_vec()),
            ("of.another.program".to_owned(), Vec::new()),
        ];
        let found = beats(&attributes.into_iter().collect());
        assert_eq!(found, [(InstanceId(0xAB), 17), (InstanceId(u64::MAX), 3)].into());
    }
}
