//! [`Permit`]: checks permissions, in one of three ways.
//!
//! 1. Operations that change a directory or attributes are called *as the caller*. The kernel knows
//!    all rules (sticky directories, set-group-ID, quotas, immutable files), and they cost more
//!    anyway.
//! 2. Lookups, reads and writes are checked against the mode, which is at hand. That takes 0.2 µs;
//!    a change of the thread's identity takes 2 to 5 µs. The kernel also does not know the rule
//!    that owners always reach their data.
//! 3. Where the mode does not decide alone (an access control list, a file system with rules of its
//!    own), the kernel is asked as the caller (faccessat2(2)).
//!
//! A process that cannot act as others serves every caller as its own user.

use runtime::{ActingAs, act_as, may_access};
use tree::{Attributes, Caller, Permissions, TreeError};

use crate::node::{Descriptors, Node};

/// Checks permissions.
pub(crate) struct Permit {
    /// The process's own user, if calls are not made as the caller.
    pub(crate) own: Option<Caller>,
    /// Whether the mode alone decides, where there is no access control list.
    pub(crate) by_mode: bool,
    /// Whether there may be access control lists.
    pub(crate) lists: bool,
}

impl Permit {
    /// The user as whom a call is made.
    pub(crate) fn who<'a>(&'a self, caller: &'a Caller) -> &'a Caller {
        self.own.as_ref().unwrap_or(caller)
    }

    /// Acts as the caller until the guard is dropped. Nothing to do for the super-user.
    pub(crate) fn act(&self, caller: &Caller) -> Result<Option<ActingAs>, TreeError> {
        if self.own.is_some() || caller.uid == 0 && caller.gid == 0 {
            return Ok(None);
        }
        // Ids that no user has: nothing is permitted.
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
            self.who(caller).permissions(file).contains(wanted)
        } else {
            self.kernel_grants(caller, node, wanted)?
        };
        if granted { Ok(()) } else { Err(TreeError::Access) }
    }

    /// The permissions among `wanted` that the caller has, owner or not.
    pub(crate) fn granted(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
        wanted: Permissions,
    ) -> Result<Permissions, TreeError> {
        let mut granted = Permissions::default();
        if self.is_by_mode(caller, node, file) {
            granted = self.who(caller).permissions(file).and(wanted);
        } else {
            for one in [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE] {
                if wanted.contains(one) && self.kernel_grants(caller, node, one)? {
                    granted = granted.or(one);
                }
            }
        }
        Ok(granted)
    }

    /// Checks that the caller may read the data. An owner is not checked: if the process cannot act
    /// as others and the mode denies access, opening the file fails.
    pub(crate) fn check_read(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
    ) -> Result<(), TreeError> {
        if self.who(caller).uid == file.uid {
            return Ok(());
        }
        match self.check(caller, node, file, Permissions::READ) {
            Err(TreeError::Access) => self.check(caller, node, file, Permissions::EXECUTE),
            other => other,
        }
    }

    /// Checks that the caller may write the data: see [`Self::check_read`].
    pub(crate) fn check_write(
        &self,
        caller: &Caller,
        node: &Node,
        file: &Attributes,
    ) -> Result<(), TreeError> {
        if self.who(caller).uid == file.uid {
            return Ok(());
        }
        self.check(caller, node, file, Permissions::WRITE)
    }

    /// Whether the mode decides.
    fn is_by_mode(&self, caller: &Caller, node: &Node, file: &Attributes) -> bool {
        if !self.by_mode {
            return false;
        }
        if self.who(caller).uid == 0 || !self.lists {
            return true;
        }
        !node.has_list(file.ctime, || has_list(node, c"system.posix_acl_access"))
    }

    fn kernel_grants(&self, caller: &Caller, node: &Node, wanted: Permissions) -> Result<bool, TreeError> {
        let _acting = self.act(caller)?;
        Ok(may_access(node.path(), wanted.0)?)
    }

    /// Gives a new file the bits of its mode that the process's umask and a change of its owner
    /// removed. A directory with a default access control list determines the permissions itself.
    pub(crate) fn restore_mode(
        &self,
        descriptors: &Descriptors,
        directory: &Node,
        node: &Node,
        wanted: u32,
        mode: u32,
    ) -> Result<(), TreeError> {
        if wanted & !mode & 0o7777 == 0 {
            return Ok(());
        }
        let is_listed = self.lists && has_list(directory, c"system.posix_acl_default");
        let wanted = if is_listed { wanted & 0o7000 } else { wanted };
        if wanted & !mode & 0o7777 == 0 { Ok(()) } else { node.set_mode(descriptors, mode | wanted) }
    }
}

/// Whether a file has an access control list of this name.
fn has_list(node: &Node, name: &std::ffi::CStr) -> bool {
    rustix::fs::getxattr_query(node.in_proc(), name).is_ok_and(|len| len > 0)
}
