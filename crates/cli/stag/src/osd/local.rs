//! One file of the local file system, of any kind: its properties, the places of its data, and its
//! creation. Knows nothing of objects. Every call blocks.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags, chownat, lgetxattr,
    llistxattr, lsetxattr, makedev, mknodat, seek, utimensat,
};
use rustix::io::Errno;

/// Kinds of files. Objects store the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Bytes.
    Regular = 1,
    /// Names of other files.
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Character = 5,
    Block = 6,
    Socket = 7,
    /// Another name of a file that has several. No kind of the file system: there, every name of it
    /// is alike.
    Link = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Character,
        Self::Block,
        Self::Socket,
        Self::Link,
    ];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Character => "character device",
            Self::Block => "block device",
            Self::Socket => "socket",
            Self::Link => "link",
        }
    }

    /// The letter that `ls -l` begins with.
    pub fn letter(self) -> char {
        match self {
            Self::Regular | Self::Link => '-',
            Self::Directory => 'd',
            Self::Symlink => 'l',
            Self::Fifo => 'p',
            Self::Character => 'c',
            Self::Block => 'b',
            Self::Socket => 's',
        }
    }
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub s: i64,
    /// Nanoseconds, below a thousand million.
    pub ns: u32,
}

/// The properties of a file, apart from its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub kind: Kind,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Time of the last modification.
    pub mtime: Time,
    /// Time of the last read.
    pub atime: Time,
    /// Bytes; of regular files only.
    pub size: u64,
    /// Of devices: major and minor number.
    pub device: (u32, u32),
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    /// Extended attributes, by name. ACLs are among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Identifies it among all files of the machine, if it has several names.
    pub shared: Option<(u64, u64)>,
}

/// Reads all about the file at `path`, which is not followed if it is a symlink.
pub fn meta(path: &Path) -> io::Result<Meta> {
    let about = std::fs::symlink_metadata(path)?;
    let kind = match about.file_type() {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_fifo() => Kind::Fifo,
        kind if kind.is_char_device() => Kind::Character,
        kind if kind.is_block_device() => Kind::Block,
        kind if kind.is_socket() => Kind::Socket,
        _ => Kind::Regular,
    };
    let time = |s, ns| Time { s, ns: u32::try_from(ns).unwrap_or(0) };
    let device = matches!(kind, Kind::Character | Kind::Block);
    Ok(Meta {
        kind,
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
        mtime: time(about.mtime(), about.mtime_nsec()),
        atime: time(about.atime(), about.atime_nsec()),
        size: if kind == Kind::Regular { about.size() } else { 0 },
        device: if device {
            (rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()))
        } else {
            (0, 0)
        },
        target: match kind {
            Kind::Symlink => Some(std::fs::read_link(path)?.into_os_string().into_vec()),
            _ => None,
        },
        xattrs: xattrs(path)?,
        shared: (kind != Kind::Directory && about.nlink() > 1).then(|| (about.dev(), about.ino())),
    })
}

/// Extended attributes, in the order of their names.
fn xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    /// The longest list, and the longest value, that Linux has (XATTR_LIST_MAX, XATTR_SIZE_MAX).
    const MOST: usize = 65536;
    // Nearly no file has any: a small buffer first.
    let mut names = vec![0; 1024];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::RANGE) => {
            names.resize(MOST, 0);
            llistxattr(path, &mut names[..])
        }
        other => other,
    };
    let len = match len {
        // A file system without them.
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names.get(..len).unwrap_or_default().split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let mut value = vec![0; MOST];
        match lgetxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                found.push((name.to_bytes().to_vec(), value));
            }
            // Removed meanwhile, or not readable.
            Err(Errno::NODATA | Errno::PERM | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found)
}

/// The names in a directory, in order.
pub fn names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let names = std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_vec()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Ranges of a file of `len` bytes that have data: first byte and length. Holes lie between them.
/// On a file system without holes, one range covers the file.
pub fn data_ranges(file: &File, len: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(vec![(0, len)]),
            Err(error) => return Err(error.into()),
        };
        if begin >= len {
            break;
        }
        let end = seek(file, SeekFrom::Hole(begin))?.min(len);
        if end <= begin {
            break;
        }
        ranges.push((begin, end - begin));
        at = end;
    }
    Ok(ranges)
}

/// Makes a file that is no regular one and no directory, unfinished.
pub fn make(path: &Path, meta: &Meta) -> io::Result<()> {
    let node = |kind| {
        let device = makedev(meta.device.0, meta.device.1);
        mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device).map_err(io::Error::from)
    };
    match meta.kind {
        Kind::Regular | Kind::Link => File::create_new(path).map(drop),
        Kind::Directory => std::fs::create_dir(path),
        Kind::Symlink => {
            let target = meta.target.as_deref().unwrap_or_default();
            std::os::unix::fs::symlink(OsStr::from_bytes(target), path)
        }
        Kind::Fifo => node(FileType::Fifo),
        Kind::Character => node(FileType::CharacterDevice),
        Kind::Block => node(FileType::BlockDevice),
        Kind::Socket => node(FileType::Socket),
    }
}

/// The properties of a file that could not be restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// Names of extended attributes.
    pub xattrs: Vec<String>,
    /// Its owner or group.
    pub owner: bool,
}

/// Sets all other properties of a file that has its data already. `owners`: its owner and group
/// too.
///
/// # Errors
/// The system's errors. A property that this user or file system cannot set is no error.
pub fn finish(path: &Path, meta: &Meta, owners: bool) -> io::Result<Shortfall> {
    let mut shortfall = Shortfall::default();
    if owners {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        match chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::PERM) => shortfall.owner = true,
            Err(error) => return Err(error.into()),
        }
    }
    for (name, value) in &meta.xattrs {
        let Ok(c_name) = CString::new(name.as_slice()) else { continue };
        match lsetxattr(path, c_name.as_c_str(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::NOTSUP | Errno::NOSPC | Errno::ACCESS) => {
                shortfall.xattrs.push(String::from_utf8_lossy(name).into_owned());
            }
            Err(error) => return Err(error.into()),
        }
    }
    // After the owner, whose change takes the set-user-ID bit away; a symlink has no mode.
    if meta.kind != Kind::Symlink {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(meta.mode);
        std::fs::set_permissions(path, mode)?;
    }
    let time = |time: Time| Timespec { tv_sec: time.s, tv_nsec: time.ns.into() };
    let times = Timestamps { last_access: time(meta.atime), last_modification: time(meta.mtime) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(shortfall)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_made_from_what_was_read_of_another_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "data").unwrap();
        std::fs::set_permissions(&from, std::os::unix::fs::PermissionsExt::from_mode(0o4751)).unwrap();
        let marked = lsetxattr(&from, c"user.colour", b"red", XattrFlags::empty()).is_ok();
        let past = Timestamps {
            last_access: Timespec { tv_sec: -5, tv_nsec: 999_999_999 },
            last_modification: Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 },
        };
        utimensat(CWD, &from, &past, AtFlags::empty()).unwrap();
        let about = meta(&from).unwrap();
        assert_eq!((about.mode, about.mtime, about.size), (0o4751, Time { s: 1_000_000_000, ns: 7 }, 4));
        assert_eq!(about.xattrs.len(), usize::from(marked));
        make(&to, &about).unwrap();
        std::fs::write(&to, "data").unwrap();
        assert_eq!(finish(&to, &about, true).unwrap(), Shortfall::default());
        assert_eq!(meta(&to).unwrap(), about);
    }

    #[test]
    fn symlinks_fifos_and_names_that_are_no_text_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        let odd = OsStr::from_bytes(b"\xff\n");
        std::os::unix::fs::symlink("no such place", from.join(odd)).unwrap();
        mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for name in names(&from).unwrap() {
            let name = OsStr::from_bytes(&name);
            let about = meta(&from.join(name)).unwrap();
            make(&to.join(name), &about).unwrap();
            finish(&to.join(name), &about, true).unwrap();
            assert_eq!(meta(&to.join(name)).unwrap(), about);
        }
        assert_eq!(names(&to).unwrap(), names(&from).unwrap());
        assert_eq!(meta(&to.join(odd)).unwrap().kind, Kind::Symlink);
    }

    #[test]
    fn holes_are_found_where_the_file_system_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("sparse")).unwrap();
        file.set_len(10 << 20).unwrap();
        assert_eq!(data_ranges(&file, 0).unwrap(), []);
        file.write_all_at(b"x", 5 << 20).unwrap();
        let ranges = data_ranges(&file, 10 << 20).unwrap();
        assert!(ranges.iter().any(|(at, len)| (*at..at + len).contains(&(5 << 20))), "{ranges:?}");
        assert!(ranges.iter().all(|(at, len)| at + len <= 10 << 20), "{ranges:?}");
    }

    #[test]
    fn a_kind_is_its_number() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_code(kind as u8), Some(kind));
        }
        assert_eq!((Kind::from_code(0), Kind::from_code(9)), (None, None));
    }
}
