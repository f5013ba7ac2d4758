//! Where objects are: a unit's URL with a partition, and an object or a path, behind it.

use std::path::PathBuf;
use std::str::FromStr;

use iscsi_client::Url;

/// The lowest id of a partition or an object (OSD-2 §4.6).
const FIRST_ID: u64 = 0x1_0000;

/// A device, a partition or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// The device.
    pub url: Url,
    /// The partition.
    pub partition: Option<u64>,
    /// What is in it.
    pub object: Option<Object>,
}

/// An object of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// By its id.
    Id(u64),
    /// By its path in the partition's tree; its parts, none of them empty, `.` or `..`.
    Path(Vec<Vec<u8>>),
}

/// A directory here, or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
// There is one of it.
#[allow(clippy::large_enum_variant)]
pub enum Offline {
    /// A directory.
    Directory(PathBuf),
    /// A device or a partition.
    Device(Where),
}

impl Where {
    /// Its path in the tree; the top of it for a partition.
    pub fn path(&self) -> Option<&[Vec<u8>]> {
        match &self.object {
            None => Some(&[]),
            Some(Object::Path(path)) => Some(path),
            Some(Object::Id(_)) => None,
        }
    }
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let missing = || "write iscsi://HOST[:PORT]/IQN/LUN[/PARTITION[/OBJECT]]".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(missing)?;
        // Authority, target and unit, then what is ours.
        let mut parts = rest.splitn(4, '/');
        let head: Vec<&str> = parts.by_ref().take(3).collect();
        if head.len() < 3 {
            return Err(missing());
        }
        let url = super::url::unit(&format!("{scheme}://{}", head.join("/")))?;
        let behind = parts.next().unwrap_or("");
        let (partition, object) = behind.split_once('/').unwrap_or((behind, ""));
        if partition.is_empty() {
            return match object.is_empty() {
                true => Ok(Self { url, partition: None, object: None }),
                false => Err("the partition's id is missing before the object".into()),
            };
        }
        let partition = id(partition).map_err(|what| format!("`{partition}` is not a partition: {what}"))?;
        Ok(Self { url, partition: Some(partition), object: Object::parse(object)? })
    }
}

impl Object {
    /// `None` for nothing but slashes and dots.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        if let Ok(id) = id(text) {
            return Ok(Some(Self::Id(id)));
        }
        let mut path = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err("write the path without ..".into()),
                name if name.len() > 255 => return Err("a name has at most 255 bytes".into()),
                name => path.push(name.as_bytes().to_vec()),
            }
        }
        // `.` and `/` are the top itself.
        Ok(if path.is_empty() { None } else { Some(Self::Path(path)) })
    }
}

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)?;
        if let Some(partition) = self.partition {
            write!(f, "/{partition:#x}")?;
        }
        match &self.object {
            None => Ok(()),
            Some(Object::Id(id)) => write!(f, "/{id:#x}"),
            Some(Object::Path(path)) => {
                // One that looks like an id.
                if let [only] = path.as_slice()
                    && std::str::from_utf8(only).is_ok_and(|only| id(only).is_ok())
                {
                    f.write_str("/.")?;
                }
                path.iter().try_for_each(|part| write!(f, "/{}", String::from_utf8_lossy(part)))
            }
        }
    }
}

impl FromStr for Offline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("write a directory or a URL".into()),
            _ if text.contains("://") => text.parse().map(Self::Device),
            _ => Ok(Self::Directory(text.strip_prefix("osd:").unwrap_or(text).into())),
        }
    }
}

/// An id of a partition or an object, decimal or hexadecimal.
pub fn id(text: &str) -> Result<u64, String> {
    let number = id_or_none(text)?;
    if number < FIRST_ID {
        return Err(format!("ids begin with {FIRST_ID:#x}"));
    }
    Ok(number)
}

/// The same, or 0 for none.
pub fn id_or_none(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None if text.bytes().all(|digit| digit.is_ascii_digit()) => text.parse().ok(),
        None => None,
    };
    match number {
        Some(number) if number == 0 || number >= FIRST_ID => Ok(number),
        Some(_) => Err(format!("ids begin with {FIRST_ID:#x}")),
        None => Err("write an id, decimal or 0x… hexadecimal".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "iscsi://host:3260/iqn.2026-01.org.example:osd/0";

    fn at(behind: &str) -> Where {
        format!("{UNIT}{behind}").parse().unwrap()
    }

    fn path(parts: &[&str]) -> Option<Object> {
        Some(Object::Path(parts.iter().map(|part| part.as_bytes().to_vec()).collect()))
    }

    #[test]
    fn a_partition_and_an_object_or_a_path_stand_behind_the_unit() {
        assert_eq!((at("").partition, at("/").partition), (None, None));
        assert_eq!((at("/0x10000").partition, at("/65537/").partition), (Some(0x10000), Some(0x10001)));
        assert_eq!(at("/0x10000/0x10004").object, Some(Object::Id(0x10004)));
        assert_eq!(at("/0x10000/65540").object, Some(Object::Id(0x10004)));
        assert_eq!(at("/0x10000/a/b//./c/").object, path(&["a", "b", "c"]));
        assert_eq!(at("/0x10000/./0x10004").object, path(&["0x10004"]));
        // No id is so small, so it is a name.
        assert_eq!(at("/0x10000/4711").object, path(&["4711"]));
        assert_eq!(at("/0x10000/.").path(), Some(&[][..]));
        assert_eq!(at("/0x10000/0x10004").path(), None);
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        for behind in
            ["", "/0x10000", "/0x10000/0x10004", "/0x10000/a/b", "/0x10000/./0x10004", "/0x10000/4711"]
        {
            let one = at(behind);
            assert_eq!(one.to_string().parse(), Ok(one), "{behind}");
        }
    }

    #[test]
    fn what_makes_no_sense_says_what_to_write() {
        for wrong in [
            "host/iqn.2026-01.org.example:osd/0",
            "iscsi://host/iqn.2026-01.org.example:osd",
            "http://host/iqn.2026-01.org.example:osd/0",
            "iscsi://host/iqn.2026-01.org.example:osd/0/attic",
            "iscsi://host/iqn.2026-01.org.example:osd/0/7",
            "iscsi://host/iqn.2026-01.org.example:osd/0//0x10000",
            "iscsi://host/iqn.2026-01.org.example:osd/0/0x10000/../x",
        ] {
            assert!(wrong.parse::<Where>().is_err(), "{wrong}");
        }
        assert_eq!((id("0x"), id("-1"), id("0x1_0000")), (id("x"), id("x"), id("x")));
        assert_eq!((id_or_none("0"), id("0").is_err()), (Ok(0), true));
    }
}
