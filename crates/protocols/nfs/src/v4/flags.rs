//! Bits of the words of flags.

/// ACCESS (RFC 8881 §18.1, RFC 8276 §8).
pub mod access {
    pub use crate::v3::access::*;

    /// Read extended attributes.
    pub const XAREAD: u32 = 0x40;
    /// Write extended attributes.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}

/// EXCHANGE_ID (RFC 8881 §18.35, RFC 7862 §14.1).
pub mod exchange_id {
    /// The client follows referrals; the server sends them.
    pub const SUPP_MOVED_REFER: u32 = 0x0000_0001;
    /// The client and the server support migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x0000_0002;
    /// The server fences opens and layouts apart from the lease (4.2).
    pub const SUPP_FENCE_OPS: u32 = 0x0000_0004;
    /// State belongs to the principal that made it.
    pub const BIND_PRINC_STATEID: u32 = 0x0000_0100;
    /// The server is none of pNFS.
    pub const USE_NON_PNFS: u32 = 0x0001_0000;
    /// A metadata server.
    pub const USE_PNFS_MDS: u32 = 0x0002_0000;
    /// A data server.
    pub const USE_PNFS_DS: u32 = 0x0004_0000;
    /// The three roles.
    pub const MASK_PNFS: u32 = 0x0007_0000;
    /// The client changes the record of a confirmed client ID.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The client ID is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// All that a client may set.
    pub const MASK_A: u32 = SUPP_MOVED_REFER
        | SUPP_MOVED_MIGR
        | SUPP_FENCE_OPS
        | BIND_PRINC_STATEID
        | MASK_PNFS
        | UPD_CONFIRMED_REC_A;
}

/// CREATE_SESSION (RFC 8881 §18.36).
pub mod create_session {
    /// The reply cache outlives a restart of the server.
    pub const PERSIST: u32 = 0x1;
    /// The connection is the backchannel too.
    pub const CONN_BACK_CHAN: u32 = 0x2;
    /// The connection steps up to RDMA.
    pub const CONN_RDMA: u32 = 0x4;
}

/// `sr_status_flags` of SEQUENCE (RFC 8881 §18.46).
pub mod sequence_status {
    /// No session has a working backchannel.
    pub const CB_PATH_DOWN: u32 = 0x0001;
    /// GSS contexts of the backchannel expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
    /// GSS contexts of the backchannel expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
    /// The lease expired: all state is gone.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
    /// The lease expired: some state is gone.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
    /// An administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x0020;
    /// A delegation or layout that was not returned is revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x0040;
    /// A file system moved.
    pub const LEASE_MOVED: u32 = 0x0080;
    /// The server restarted: reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x0100;
    /// This session has no working backchannel.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x0200;
    /// The backchannel's slots are out of step.
    pub const BACKCHANNEL_FAULT: u32 = 0x0400;
    /// A device ID changed.
    pub const DEVID_CHANGED: u32 = 0x0800;
    /// A device ID is gone.
    pub const DEVID_DELETED: u32 = 0x1000;
}

/// Upper bits of `share_access` of OPEN: the delegation that the client wants (RFC 8881 §18.16).
pub mod want {
    /// The bits that hold one of the numbers below.
    pub const DELEG_MASK: u32 = 0xff00;
    /// No wish.
    pub const NO_PREFERENCE: u32 = 0x0000;
    /// A read delegation.
    pub const READ_DELEG: u32 = 0x0100;
    /// A write delegation.
    pub const WRITE_DELEG: u32 = 0x0200;
    /// Either.
    pub const ANY_DELEG: u32 = 0x0300;
    /// None.
    pub const NO_DELEG: u32 = 0x0400;
    /// Cancels an earlier wish.
    pub const CANCEL: u32 = 0x0500;
    /// Tell the client when a delegation becomes available.
    pub const SIGNAL_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// Give the client a delegation when there is no conflict any more.
    pub const PUSH_WHEN_UNCONTENDED: u32 = 0x2_0000;
}

/// `rflags` of OPEN's result (RFC 8881 §18.16).
pub mod open_result {
    /// The client must confirm (4.0 only).
    pub const CONFIRM: u32 = 0x02;
    /// Locks are POSIX locks.
    pub const LOCKTYPE_POSIX: u32 = 0x04;
    /// The file stays after its last name is removed, while it is open.
    pub const PRESERVE_UNLINKED: u32 = 0x08;
    /// The server sends CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}
