//! What is known of a call before its arguments are decoded, and why one is not executed.

use std::rc::Rc;

use rpc::xdr::Malformed;

use crate::caller::Identity;

/// Where a call's arguments begin, and what its header says.
pub(crate) struct Accepted {
    pub xid: u32,
    pub procedure: u32,
    /// First byte of the arguments.
    pub body: usize,
    pub identity: Rc<Identity>,
}

/// Why a call was not executed.
pub(crate) enum Refused {
    /// Its arguments cannot be decoded.
    Garbage,
    /// The program has no such procedure.
    NoProcedure,
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::Garbage
    }
}
