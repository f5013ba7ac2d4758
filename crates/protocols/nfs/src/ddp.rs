//! The upper-layer binding of NFS to RPC over RDMA (RFC 8267 §3, §5): the items of a call and of
//! its results that may go apart, by direct data placement. No item of MOUNT may, and none of
//! READ_PLUS.

use crate::{v3, v4};

/// Whether the data or the path among the arguments may go apart.
pub fn v3_argument(procedure: v3::Procedure) -> bool {
    matches!(procedure, v3::Procedure::Write | v3::Procedure::Symlink)
}

/// Whether the data or the path among the results may go apart.
pub fn v3_result(procedure: v3::Procedure) -> bool {
    matches!(procedure, v3::Procedure::Read | v3::Procedure::ReadLink)
}

/// Whether the data of an operation, or the path of a symbolic link that it makes, may go apart.
pub fn v4_argument(operation: v4::Operation) -> bool {
    matches!(operation, v4::Operation::Write | v4::Operation::Create)
}

/// Whether the data or the path among an operation's results may go apart. The results of a
/// COMPOUND that may take the chunks of the write list in their order (RFC 8267 §5.3).
pub fn v4_result(operation: v4::Operation) -> bool {
    matches!(operation, v4::Operation::Read | v4::Operation::ReadLink)
}
