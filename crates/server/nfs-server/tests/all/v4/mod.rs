//! NFSv4.1 and 4.2 over TCP.

mod delegations;
mod exports;
mod files;
mod locks;
mod restarts;
mod sessions;

use crate::support::v4::*;
use nfs::v4::{Arguments, Lock, LockType, Locker, NewLockOwner, Read, Stable, Stateid, Write};

fn write(stateid: Stateid, offset: u64, data: &[u8]) -> Arguments<'static> {
    Arguments::Write(Write { stateid, offset, stable: Stable::Unstable, length: data.len() as u32 })
}

fn read(stateid: Stateid, offset: u64, count: u32) -> Arguments<'static> {
    Arguments::Read(Read { stateid, offset, count })
}

fn lock(
    kind: LockType,
    (offset, length): (u64, u64),
    locker: Locker<'static>,
    reclaim: bool,
) -> Arguments<'static> {
    Arguments::Lock(Lock { kind, reclaim, offset, length, locker })
}

fn first(open: Stateid, who: &'static [u8]) -> Locker<'static> {
    Locker::New(NewLockOwner { open_seqid: 0, open, lock_seqid: 0, owner: owner(who) })
}
