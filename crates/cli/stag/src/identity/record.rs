//! The record of a unit's identity, and the places where it is kept. If possible it moves with the
//! medium: as an extended attribute of the file, or in a file beside it. Otherwise it is in the
//! state directory. Must never be lost or torn: it is on stable storage once it is kept.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use backing::durable;
use device::{Identity, Names};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, statfs, statvfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::state::{self, hex};

const ATTRIBUTE: &str = "user.stag.identity";
/// The version of records that this daemon writes, and the latest that it reads.
const VERSION: u32 = 1;
/// The longest record, bytes.
const LONGEST: usize = 4096;
/// Bytes of a path that are kept. The path is only for messages.
const LONGEST_PATH: usize = 1024;

/// A unit's identity, and the file that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    v: u32,
    naa: String,
    serial: String,
    /// The file that it was made for; `None` for memory and devices, which their keys identify.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<Origin>,
}

impl Record {
    pub fn new(names: &Names, of: Option<Origin>) -> Self {
        Self { v: VERSION, naa: hex(&names.naa), serial: names.serial.clone(), of }
    }

    /// The file that it belongs to.
    pub fn origin(&self) -> Option<&Origin> {
        self.of.as_ref()
    }

    /// The same, belonging to another file.
    pub fn moved_to(&self, of: Origin) -> Self {
        Self { of: Some(of), ..self.clone() }
    }

    /// The names, if they are valid.
    pub fn names(&self) -> Option<Names> {
        let digits: Option<Vec<u8>> = (0..self.naa.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(self.naa.get(at..at + 2)?, 16).ok())
            .collect();
        let names = Names { serial: self.serial.clone(), naa: digits? };
        Identity::of("").named(names.clone()).check().is_ok().then_some(names)
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.v > VERSION {
            return Err(format!("it is of version {}, which a later stag has written", record.v));
        }
        record.names().map(|_| ()).ok_or("its names are none")?;
        Ok(record)
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }
}

/// Properties that tell a file (or the directory of a store of objects) from its copies. 0 is
/// unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    inode: u64,
    /// Birth time of the inode, nanoseconds since 1970. A copy always has another.
    born: u64,
    /// The file system's own id, if it is stable over a restart. A snapshot has another.
    fs: u64,
    /// Its path when it was served last.
    path: String,
}

impl Origin {
    /// Of the file at `path`, which need not be readable.
    pub fn of(path: &Path) -> io::Result<Self> {
        // File systems whose inode numbers change with each mount, or belong to a server that may
        // change them: FUSE, FAT, exFAT, CIFS, SMB 2, 9P.
        const FLEETING: [u32; 6] = [0x6573_5546, 0x4d44, 0x2011_bab0, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];
        // File systems whose id is made from their UUID: ext4, Btrfs, F2FS, ZFS, bcachefs. XFS
        // makes it from a device number.
        const HAVE_IDS: [u32; 5] = [0xef53, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];
        let kind = statfs(path)?.f_type as u32;
        let told: String = path.to_string_lossy().chars().take(LONGEST_PATH).collect();
        let about = std::fs::metadata(path)?;
        if FLEETING.contains(&kind) {
            return Ok(Self { path: told, ..Self::default() });
        }
        let born = about.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born = born.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        let fs = if HAVE_IDS.contains(&kind) { statvfs(path)?.f_fsid } else { 0 };
        Ok(Self { inode: about.ino(), born, fs, path: told })
    }

    /// Its path when it was served last.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Whether both are the same file, as far as their known properties tell.
    pub fn is_same(&self, other: &Self) -> bool {
        let agree = |a: u64, b: u64| a == b || a == 0 || b == 0;
        agree(self.inode, other.inode) && agree(self.born, other.born) && agree(self.fs, other.fs)
    }
}

/// The place of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In the file's extended attributes.
    Attribute,
    /// In this file, beside the medium.
    Beside(PathBuf),
    /// In this file of the state directory.
    State(PathBuf),
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attribute => write!(f, "extended attribute {ATTRIBUTE}"),
            Self::Beside(path) | Self::State(path) => path.display().fmt(f),
        }
    }
}

/// The places where a unit's record may be, the best first.
pub struct Home {
    /// The medium, where it is a file.
    pub file: Option<File>,
    pub places: Vec<Kept>,
}

impl Home {
    /// The record, and where it is.
    ///
    /// # Errors
    /// There is one that cannot be read.
    pub fn find(&self) -> Result<Option<(Kept, Record)>, String> {
        for place in &self.places {
            let bytes = match place {
                Kept::Attribute => self.attribute(),
                Kept::Beside(path) | Kept::State(path) => durable::read(path, LONGEST),
            };
            let unreadable = |why: String| format!("its identity ({place}) cannot be read: {why}");
            match bytes.map_err(|error| unreadable(error.to_string()))? {
                None => {}
                Some(bytes) => {
                    return Ok(Some((place.clone(), Record::read(&bytes).map_err(unreadable)?)));
                }
            }
        }
        Ok(None)
    }

    /// Keeps a new record in the best place that takes it.
    ///
    /// # Errors
    /// No place takes it.
    pub fn keep(&self, record: &Record) -> Result<Kept, String> {
        let mut why = String::new();
        for place in &self.places {
            match self.put(place, record) {
                Ok(()) => return Ok(place.clone()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Puts a record in the place of another.
    ///
    /// # Errors
    /// The place cannot be written.
    pub fn put(&self, place: &Kept, record: &Record) -> Result<(), String> {
        let failed = |error: io::Error| format!("{place} cannot be written: {error}");
        match place {
            Kept::Attribute => {
                let Some(file) = &self.file else { return Err("there is no file".into()) };
                set_attribute(file, record).and_then(|()| file.sync_all()).map_err(failed)
            }
            Kept::Beside(path) => {
                record.bytes().and_then(|bytes| durable::replace(path, &bytes)).map_err(failed)
            }
            Kept::State(path) => {
                state::make_folder(path)?;
                record.bytes().and_then(|bytes| durable::replace(path, &bytes)).map_err(failed)
            }
        }
    }

    fn attribute(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = &self.file else { return Ok(None) };
        let mut bytes = vec![0; LONGEST];
        match fgetxattr(file, ATTRIBUTE, &mut bytes[..]) {
            Ok(len) => {
                bytes.truncate(len);
                Ok(Some(bytes))
            }
            Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sets a file's attribute, which the caller makes durable.
///
/// # Errors
/// The file system's error.
pub fn set_attribute(file: &File, record: &Record) -> io::Result<()> {
    Ok(fsetxattr(file, ATTRIBUTE, &record.bytes()?, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nonsense_is_refused() {
        let record = Record::new(&Names::random(7), Some(Origin { inode: 3, ..Origin::default() }));
        assert_eq!(Record::read(&record.bytes().unwrap()), Ok(record.clone()));
        assert_eq!(record.names(), Some(Names::random(7)));
        let with = |naa: &str, serial: &str, v| {
            let text = format!(r#"{{"v":{v},"naa":"{naa}","serial":"{serial}"}}"#);
            Record::read(text.as_bytes()).map(|_| ())
        };
        assert_eq!(with("3306b95edfee5d9d", "0dc611523028b80c", 1), Ok(()));
        for (naa, serial) in
            [("", "1"), ("330", "1"), ("9306b95edfee5d9d", "1"), ("3306b95edfee5d9d", ""), ("é", "1")]
        {
            assert!(with(naa, serial, 1).is_err(), "{naa} {serial}");
        }
        assert!(with("3306b95edfee5d9d", "1", 2).unwrap_err().contains("later stag"));
    }

    #[test]
    fn what_is_not_known_of_a_file_tells_it_from_no_other() {
        let origin = |inode, born, fs| Origin { inode, born, fs, path: String::new() };
        assert!(origin(1, 2, 3).is_same(&origin(1, 2, 3)));
        assert!(origin(1, 0, 3).is_same(&origin(1, 2, 0)));
        for other in [origin(9, 2, 3), origin(1, 9, 3), origin(1, 2, 9)] {
            assert!(!origin(1, 2, 3).is_same(&other));
        }
    }
}
