//! [`Caller`]: the user for whom a server acts, and the permissions that a file's mode grants.

use std::sync::Arc;

use crate::{Attributes, Kind};

/// The user for whom a server acts. The ids are those after the export's rules: squashed, and with
/// all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User. 0 may do everything.
    pub uid: u32,
    /// Group, and group of the files it makes.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

/// Permissions for a file, as a set of bits. The values are those of the mode, and of access(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Permissions(pub u32);

impl Permissions {
    /// Read its data, or list the directory.
    pub const READ: Self = Self(4);
    /// Change its data, or the directory's entries.
    pub const WRITE: Self = Self(2);
    /// Execute it, or look names up in the directory.
    pub const EXECUTE: Self = Self(1);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Whether `other` is part of this.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Intersection.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Union.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Caller {
    /// The super-user.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Arc::from([]) }
    }

    /// Whether it is a member of `group`.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Permissions by the mode: the class of the owner, of the group or of others (POSIX.1 §4.5
    /// File Access Permissions). The super-user may execute a file if any class may.
    pub fn permissions(&self, file: &Attributes) -> Permissions {
        if self.uid == 0 {
            let executable = file.kind == Kind::Directory || file.mode & 0o111 != 0;
            return if executable { Permissions::ALL } else { Permissions(6) };
        }
        let class = if self.uid == file.uid {
            6
        } else if self.is_in(file.gid) {
            3
        } else {
            0
        };
        Permissions(file.mode >> class & 7)
    }

    /// Whether it may read the data of a regular file through a server that has no opens. A program
    /// that holds a file open goes on when the mode changes, so its owner always may. A caller with
    /// execute permission may read the file, since a client has to load it (RFC 1813 §4.4).
    pub fn may_read_data(&self, file: &Attributes) -> bool {
        self.uid == file.uid || self.permissions(file).0 & 5 != 0
    }

    /// Whether it may write the data of a regular file through a server that has no opens: see
    /// [`Self::may_read_data`].
    pub fn may_write_data(&self, file: &Attributes) -> bool {
        self.uid == file.uid || self.permissions(file).contains(Permissions::WRITE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Attributes {
        Attributes { mode, uid: 10, gid: 20, ..Attributes::example(Kind::Regular) }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.into() }
    }

    #[test]
    fn only_the_first_class_that_matches_counts() {
        let file = file(0o047);
        assert_eq!(caller(10, 20, &[]).permissions(&file), Permissions(0), "the owner's, though others may");
        assert_eq!(caller(11, 20, &[]).permissions(&file), Permissions::READ);
        assert_eq!(caller(11, 5, &[6, 20]).permissions(&file), Permissions::READ, "a supplementary group");
        assert_eq!(caller(11, 5, &[6]).permissions(&file), Permissions::ALL);
    }

    #[test]
    fn the_super_user_executes_what_somebody_may_execute() {
        assert_eq!(Caller::root().permissions(&file(0)), Permissions(6));
        assert_eq!(Caller::root().permissions(&file(0o001)), Permissions::ALL);
    }

    #[test]
    fn owners_reach_the_data_whatever_the_mode_says() {
        let (owner, other) = (caller(10, 1, &[]), caller(11, 1, &[]));
        assert!(owner.may_write_data(&file(0o444)) && owner.may_read_data(&file(0)));
        assert!(!other.may_write_data(&file(0o444)) && other.may_read_data(&file(0o001)));
    }
}
