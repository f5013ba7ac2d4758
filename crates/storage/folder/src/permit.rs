//! [`Permit`]: who may do what. Owns the choice between three ways to check a permission.
//!
//! 1. Operations that change a directory or attributes are called *as the caller*. The kernel knows
//!    all rules (sticky directories, set-group-ID, quotas, immutable files), and they cost more
//!    anyway.
//! 2. Lookups, reads and writes are checked against the mode, which is at hand. That takes 0.2 µs,
//!    where a change of the thread's identity takes 2 to 5 µs. The kernel also does not know the rule
//!    that owners always reach their data.
//! 3. Where the mode is not all (an access control list, a file system with rules of its own), the
//!    kernel is asked as the caller (faccessat2(2)).
//!
//! A process that cannot act as others serves everybody as itself, and always asks the kernel.

use runtime::{ActingAs, act_as};
use rustix::fs::{Access, AtFlags};
use tree::{Attributes, Caller, Permissions, TreeError};

use crate::failed;
use crate::node::{Descriptors, Node};

/// Who may do what.
pub(crate) struct Permit {
    /// Whether calls are made as the caller.
    pub(crate) as_caller: bool,
    /// Whether the mode says all, where there is no access control list.
    pub(crate) by_mode: bool,
    /// Whether there may be access control lists.
    pub(crate) lists: bool,
}

impl Permit {
    /// Acts as the caller until the guard is dropped. Nothing to do for the super-user.
    pub(crate) fn act(&self, caller: &Caller) -> Result<Option<ActingAs>, TreeError> {
        if !self.as_caller || caller.uid == 0 && caller.gid == 0 {
            return Ok(None);
        }
        // Numbers that no user has: nothing is permitted.
        act_as(caller.uid, caller.gid, &caller.groups).map(Some).map_err(|_| TreeError::Access)
    }

    /// Checks that the caller has all of `wanted`.
    pub(crate) fn check(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
        wanted: Permissions,
    ) -> Result<(), TreeError> {
        let granted = if self.is_by_mode(caller, node, file) {
            caller.permissions(file).contains(wanted)
        } else {
            self.kernel_grants(caller, node, wanted)?
        };
        if granted { Ok(()) } else { Err(TreeError::Access) }
    }

    /// Which of `wanted` the caller has. Owners always reach their data.
    pub(crate) fn granted(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
        wanted: Permissions,
    ) -> Result<Permissions, TreeError> {
        let mut granted = Permissions::default();
        if self.is_by_mode(caller, node, file) {
            granted = caller.permissions(file).and(wanted);
        } else {
            for one in [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE] {
                if wanted.contains(one) && self.kernel_grants(caller, node, one)? {
                    granted = granted.or(one);
                }
            }
        }
        if self.as_caller && caller.uid == file.uid && file.kind == tree::Kind::Regular {
            granted = granted.or(wanted.and(Permissions(6)));
        }
        Ok(granted)
    }

    /// Checks that the caller may read the data. Otherwise opening the file tells.
    pub(crate) fn check_read(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
    ) -> Result<(), TreeError> {
        if !self.as_caller || caller.uid == file.uid {
            return Ok(());
        }
        match self.check(caller, node, file, Permissions::READ) {
            Err(TreeError::Access) => self.check(caller, node, file, Permissions::EXECUTE),
            other => other,
        }
    }

    /// Checks that the caller may write the data. Otherwise opening the file tells.
    pub(crate) fn check_write(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
    ) -> Result<(), TreeError> {
        if !self.as_caller || caller.uid == file.uid {
            return Ok(());
        }
        self.check(caller, node, file, Permissions::WRITE)
    }

    /// Whether the mode decides.
    fn is_by_mode(&self, caller: &Caller, node: &Node, file: &Attributes) -> bool {
        if !self.as_caller || !self.by_mode {
            return false;
        }
        if caller.uid == 0 || !self.lists {
            return true;
        }
        !node.has_list(file.ctime, || has_list(node, c"system.posix_acl_access"))
    }

    fn kernel_grants(&self, caller: &Caller, node: &Node, wanted: Permissions) -> Result<bool, TreeError> {
        let access = Access::from_bits_truncate(wanted.0);
        let acting = self.act(caller)?;
        let granted = rustix::fs::accessat(rustix::fs::CWD, node.in_proc(), access, AtFlags::EACCESS);
        drop(acting);
        match granted.map_err(failed) {
            Ok(()) => Ok(true),
            Err(TreeError::Access | TreeError::NotOwner | TreeError::ReadOnly) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a new file the permissions that the process's mask took from it. A directory with a
    /// default access control list says itself what new files get.
    pub(crate) fn restore_mode(
        &self,
        descriptors: &Descriptors,
        directory: &Node,
        node: &Node,
        wanted: u32,
        mode: u32,
    ) -> Result<(), TreeError> {
        if wanted & !mode & 0o7777 == 0 || self.lists && has_list(directory, c"system.posix_acl_default") {
            return Ok(());
        }
        node.set_mode(descriptors, mode | wanted)
    }
}

/// Whether a file has an access control list of this name.
fn has_list(node: &Node, name: &std::ffi::CStr) -> bool {
    rustix::fs::getxattr(node.in_proc(), name, &mut [0u8; 0][..]).is_ok_and(|len| len > 0)
}
