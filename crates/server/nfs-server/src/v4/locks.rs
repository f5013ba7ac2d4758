//! LOCK, LOCKT and LOCKU (RFC 8881 §18.10 to §18.12).

use nfs::v4::state::{Denied, LockFile, Locker as Whose, NotLocked};
use nfs::v4::{Lock, LockDenied, LockT, LockU, Locker, Outcome, OutcomeOr, Results, StateOwner, Status};
use rpc::xdr::Opaque;

use super::compound::{Compound, Done, Failed, Place, Results as Reply};
use crate::handle::Bytes;

/// The current file's handle. It is a regular file.
async fn lockable(c: &Compound<'_>) -> Result<Bytes, Status> {
    let file = c.file(Status::IsDir)?;
    file.regular().await?;
    Ok(c.handle(&Place::File(file.clone())))
}

/// The conflicting lock.
fn held(by: &Denied) -> LockDenied<'_> {
    let Denied { offset, length, kind, client, owner } = by;
    // The state has taken it from an owner of this length.
    let owner = StateOwner { client: *client, owner: Opaque::new(owner).unwrap_or(Opaque::EMPTY) };
    LockDenied { offset: *offset, length: *length, kind: *kind, owner }
}

pub(super) async fn lock(c: &mut Compound<'_>, what: Lock<'_>, to: &mut Reply<'_, '_>) -> Done {
    let file = &lockable(c).await?;
    let locker = match &what.locker {
        Locker::New(new) => Whose::New { open: c.stateid(new.open)?, owner: new.owner.owner.bytes() },
        Locker::Old(old) => Whose::Existing(c.stateid(old.locks)?),
    };
    let request = LockFile { file, kind: what.kind, offset: what.offset, length: what.length };
    match c.state(|state, now, client| Ok(state.lock(now, client, request, locker, what.reclaim)))? {
        Ok(stateid) => {
            c.stateids.set(stateid);
            to.push(&Results::Lock(OutcomeOr::Ok(stateid)));
            Ok(())
        }
        Err(NotLocked::Denied(by)) => {
            to.push(&Results::Lock(OutcomeOr::Or(held(&by))));
            Err(Failed::Said)
        }
        Err(NotLocked::Status(status)) => Err(status.into()),
    }
}

pub(super) async fn test(c: &Compound<'_>, what: LockT<'_>, to: &mut Reply<'_, '_>) -> Done {
    let file = &lockable(c).await?;
    let request = LockFile { file, kind: what.kind, offset: what.offset, length: what.length };
    let owner = what.owner.owner.bytes();
    match c.state(|state, now, client| Ok(state.test_lock(now, client, request, owner)))? {
        Ok(()) => {
            to.push(&Results::LockT(OutcomeOr::Ok(())));
            Ok(())
        }
        Err(NotLocked::Denied(by)) => {
            to.push(&Results::LockT(OutcomeOr::Or(held(&by))));
            Err(Failed::Said)
        }
        Err(NotLocked::Status(status)) => Err(status.into()),
    }
}

pub(super) fn unlock(c: &mut Compound<'_>, what: LockU, to: &mut Reply<'_, '_>) -> Done {
    let stateid = c.stateid(what.locks)?;
    let stateid = c.state(|state, _, client| state.unlock(client, stateid, what.offset, what.length))?;
    c.stateids.set(stateid);
    to.push(&Results::LockU(Outcome::Ok(stateid)));
    Ok(())
}
