//! Header fields of an RPC call, and reasons not to execute it.

use std::rc::Rc;

use rpc::xdr::Malformed;

use crate::caller::Identity;

/// Fields of an accepted call's header.
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
