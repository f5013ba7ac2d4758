//! OPEN, CLOSE and OPEN_DOWNGRADE (RFC 8881 §18.16, §18.2, §18.18).

use nfs::v4::flags::{open_result, want};
use nfs::v4::state::{Claim as Right, Delegated, OpenFile, Opened, Share};
use nfs::v4::{
    Ace, Bitmap, ChangeInfo, Claim, Close, CreateHow, Delegation, DelegationType, Fattr, Open, OpenDowngrade,
    OpenOk, Outcome, ReadDelegation, Results, ShareAccess, ShareDeny, Stateid, Status, attribute,
};
use rpc::xdr::Opaque;
use tree::{Attributes, Created, New, NewFile, Permissions, SetAttributes, TreeError};

use super::attributes::{WITH_EXCLUSIVE, to_set};
use super::compound::{Compound, Done, Place, Results as Reply, checked, in_export, writable};
use super::{convert, files, names};
use crate::changing::Change;
use crate::file::File;

/// A file that is to be opened.
struct Target<'c> {
    file: File,
    of: Attributes,
    /// The check of the caller's rights that is left.
    check: Check,
    directory: ChangeInfo,
    /// The attributes of the request that were set.
    set: Bitmap,
    /// To be cut, or extended, as soon as it is open.
    size: Option<u64>,
    /// It was made just now. Until it is open no client gets a delegation of it: a recall would
    /// make this OPEN answer DELAY, and the client's next try would find the file there.
    making: Option<Change<'c>>,
}

impl Target<'_> {
    /// A file that was there before.
    ///
    /// # Errors
    /// Those of [`File::regular`].
    async fn there(file: File, check: Check, directory: ChangeInfo) -> Result<Self, Status> {
        let of = file.regular().await?;
        Ok(Self { file, of, check, directory, set: Bitmap::EMPTY, size: None, making: None })
    }

    /// The file, which was there before, is to have this size.
    ///
    /// # Errors
    /// ROFS.
    fn cut(self, size: Option<u64>) -> Result<Self, Status> {
        if size.is_some() && self.file.rule.read_only {
            return Err(Status::RoFs);
        }
        let set = size.map_or(Bitmap::EMPTY, |_| Bitmap::of(&[attribute::SIZE]));
        Ok(Self { size, set, ..self })
    }
}

/// A check of the caller's rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Nothing: the caller has made it just now.
    Nothing,
    /// The check of READ and WRITE: the file was open before, or a retried attempt made it.
    Data,
    /// The check of the mode.
    Mode,
}

fn share(access: u32, deny: u32) -> Result<Share, Status> {
    let access = ShareAccess::of(access).ok_or(Status::Inval)?;
    Ok(Share { access, deny: ShareDeny::from_code(deny).ok_or(Status::Inval)? })
}

pub(super) async fn open(c: &mut Compound<'_>, what: &Open<'_>, to: &mut Reply<'_, '_>) -> Done {
    let share = share(what.share_access, what.share_deny)?;
    let right = match what.claim {
        Claim::Null(_) | Claim::Fh(()) => Right::New,
        Claim::Previous(of) => Right::Reclaim { delegation: of != DelegationType::None },
        Claim::DelegateCur(of) => Right::Delegated(c.stateid(of.delegation)?),
        Claim::DelegCurFh(stateid) => Right::Delegated(c.stateid(stateid)?),
        Claim::DelegatePrev(_) | Claim::DelegPrevFh(()) => return Err(Status::NotSupp.into()),
    };
    c.state(|state, _, client| state.admit(client, right))?;
    let target = match (&what.claim, &what.create) {
        (Claim::Null(name), None) => existing(c, checked(*name)?).await?,
        (Claim::DelegateCur(of), None) => existing(c, checked(of.name)?).await?,
        (Claim::Null(name), Some(how)) => made(c, checked(*name)?, how).await?,
        (_, Some(_)) => return Err(Status::Inval.into()),
        (_, None) => {
            let check = if matches!(right, Right::Reclaim { .. }) { Check::Data } else { Check::Mode };
            let file = c.file(Status::IsDir)?.clone();
            Target::there(file, check, ChangeInfo::default()).await?
        }
    };
    let (file, of) = (target.file, target.of);
    permitted(&file, &of, share.access, target.check).await?;
    let handle = c.model.handle(&file.export, &file.node);
    let request = OpenFile {
        file: &handle,
        owner: what.owner.owner.bytes(),
        share,
        claim: right,
        want: what.share_access,
        changing: false,
        made: target.check == Check::Nothing,
    };
    let size = target.size.filter(|size| *size != of.size || *size == 0);
    let resizing = size.map(|_| c.client.shared.state.changing.begin(file.export.id, &file.node));
    let opened = c.client.shared.state.open(c.session_client()?, &file, request)?;
    drop(target.making);
    if let Some(size) = size {
        resize(c, &file, size, (&opened, share.access)).await?;
    }
    drop(resizing);
    let delegation = match opened.delegation {
        // The ACE grants no access: other users send ACCESS.
        Ok(Delegated { stateid, recall }) => {
            let permissions = Ace { kind: 0, flag: 0, mask: 0, who: Opaque::EMPTY };
            Delegation::Read(ReadDelegation { stateid, recall, permissions })
        }
        Err(why) if what.share_access & want::DELEG_MASK != want::NO_PREFERENCE => Delegation::NoneExt(why),
        _ => Delegation::None(()),
    };
    c.go_to(Place::File(file));
    c.stateids.set(opened.stateid);
    to.push(&Results::Open(Outcome::Ok(OpenOk {
        stateid: opened.stateid,
        directory: target.directory,
        // A client that waits for a lock is called when it is free (CB_NOTIFY_LOCK).
        flags: open_result::LOCKTYPE_POSIX | open_result::MAY_NOTIFY_LOCK,
        attributes_set: target.set,
        delegation,
    })));
    Ok(())
}

/// Cuts a file that has just been opened. If that fails, it is not open.
async fn resize(
    c: &Compound<'_>,
    file: &File,
    size: u64,
    (opened, access): (&Opened, ShareAccess),
) -> Result<(), Status> {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    // An open for writing has had delegations recalled, and was not denied.
    let may =
        if access.writes() { Ok(None) } else { files::may(c, file, Stateid::ANONYMOUS, ShareAccess::Write) };
    let done = match may {
        Ok(_) => file.done(file.tree().set_attributes(&file.caller, &file.node, &set, None).await).map(drop),
        Err(status) => Err(status),
    };
    // A later seqid is of an open that was there before.
    if done.is_err() && opened.stateid.seqid == 1 {
        c.state(|state, _, client| state.close(client, opened.stateid))?;
    }
    done
}

/// Checks that the caller may open the file so.
async fn permitted(file: &File, of: &Attributes, access: ShareAccess, check: Check) -> Result<(), Status> {
    if access.writes() && file.rule.read_only {
        return Err(Status::RoFs);
    }
    let (reads, writes) = match check {
        Check::Nothing => (true, true),
        Check::Data | Check::Mode => {
            // A tree may have every caller act as its own user.
            let granted = file.tree().access(&file.caller, &file.node, Permissions::ALL).await;
            let may = file.done(granted)?.permissions;
            let is_open = check == Check::Data;
            // A client that may execute a file has to read it.
            let reads = may.0 & 5 != 0 || is_open && file.caller.may_read_data(of);
            let writes = may.contains(Permissions::WRITE) || is_open && file.caller.may_write_data(of);
            (reads, writes)
        }
    };
    if (access.reads() && !reads) || (access.writes() && !writes) { Err(Status::Access) } else { Ok(()) }
}

/// The file of a name in the current directory.
async fn existing<'c>(c: &Compound<'c>, name: &[u8]) -> Result<Target<'c>, Status> {
    let found = names::find(c, c.current()?, name).await?;
    let file = in_export(&found, Status::IsDir)?.clone();
    let directory = match c.current()? {
        Place::File(directory) => convert::unchanged(directory.now().await?.change),
        Place::Above(_) => ChangeInfo::default(),
    };
    Target::there(file, Check::Mode, directory).await
}

/// The file of a name in the current directory, which is made if need be.
async fn made<'c>(c: &Compound<'c>, name: &[u8], how: &CreateHow<'_>) -> Result<Target<'c>, Status> {
    let none = Fattr::EMPTY;
    let (given, verifier) = match how {
        CreateHow::Unchecked(given) | CreateHow::Guarded(given) => (given, None),
        CreateHow::Exclusive(verifier) => (&none, Some(*verifier)),
        CreateHow::Exclusive41(exclusive) => (&exclusive.attributes, Some(exclusive.verifier)),
    };
    if verifier.is_some() && !given.set().minus(WITH_EXCLUSIVE).is_empty() {
        return Err(Status::Inval);
    }
    let attributes = to_set(given, c.minor)?;
    let new = match (how, verifier) {
        (_, Some(verifier)) => NewFile::Exclusive { verifier: verifier.0, attributes },
        (CreateHow::Guarded(_), _) => NewFile::Guarded(attributes),
        _ => {
            // An existing file is truncated only once it is open, and no share denies that.
            match existing(c, name).await {
                Err(Status::NoEnt) => NewFile::Guarded(attributes),
                found => return found?.cut(attributes.size),
            }
        }
    };
    // Only now: an existing file of a read-only export can be opened.
    let directory = writable(c.current()?)?;
    // Whatever has this name below is hidden.
    names::changeable(c, directory, name).map_err(|_| Status::Exist)?;
    // A file that cannot be opened is not made. If it is there already, the tree says what to do.
    let has_room = c.state(|state, _, client| Ok(state.has_room(client)))?;
    if !has_room && matches!(existing(c, name).await, Err(Status::NoEnt)) {
        return Err(Status::Delay);
    }
    let making = c.client.shared.state.changing.begin_any();
    let created = directory.tree().create(&directory.caller, &directory.node, name, New::File(new)).await;
    let Created { node, directory: changed, new, attributes: of } = match created {
        // Another client has made it meanwhile, and may have removed it again.
        Err(TreeError::Exists) if matches!(how, CreateHow::Unchecked(_)) => {
            let found = existing(c, name).await;
            let found = found.map_err(|status| if status == Status::NoEnt { Status::Delay } else { status });
            return found?.cut(attributes.size);
        }
        created => directory.done(created)?,
    };
    let check = match (new, verifier) {
        (true, _) => Check::Nothing,
        (false, Some(_)) => Check::Data,
        (false, None) => Check::Mode,
    };
    let directory_change =
        if new { convert::changed(&changed) } else { convert::unchanged(changed.after.change) };
    let mut set = given.set();
    // Times that are not those of the creation hold the verifier: the client learns that it has to
    // set them (RFC 8881 §18.16.4).
    if verifier.is_some() && (of.atime, of.mtime) != (of.ctime, of.ctime) {
        set = set.with(attribute::TIME_ACCESS).with(attribute::TIME_MODIFY);
    }
    let making = new.then_some(making);
    let file = directory.beside(node);
    Ok(Target { file, of, check, directory: directory_change, set, size: None, making })
}

pub(super) fn close(c: &mut Compound<'_>, what: Close, to: &mut Reply<'_, '_>) -> Done {
    let stateid = c.stateid(what.stateid)?;
    c.state(|state, _, client| state.close(client, stateid))?;
    c.stateids.set(Stateid::INVALID);
    to.push(&Results::Close(Outcome::Ok(Stateid::INVALID)));
    Ok(())
}

pub(super) fn return_delegation(c: &Compound<'_>, stateid: Stateid, to: &mut Reply<'_, '_>) -> Done {
    let stateid = c.stateid(stateid)?;
    c.state(|state, _, client| state.return_delegation(client, stateid))?;
    to.push(&Results::DelegReturn(Outcome::Ok(())));
    Ok(())
}

pub(super) fn downgrade(c: &mut Compound<'_>, what: OpenDowngrade, to: &mut Reply<'_, '_>) -> Done {
    let stateid = c.stateid(what.stateid)?;
    let share = share(what.share_access, what.share_deny)?;
    let stateid = c.state(|state, _, client| state.downgrade(client, stateid, share))?;
    c.stateids.set(stateid);
    to.push(&Results::OpenDowngrade(Outcome::Ok(stateid)));
    Ok(())
}
