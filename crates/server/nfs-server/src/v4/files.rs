//! The operations on the current file: its attributes, its data, and what a symbolic link says.

use nfs::v4::flags::access;
use nfs::v4::{
    AccessOk, Bitmap, Commit, Fattr, Outcome, Read, ReadOk, Results, SetAttr, ShareAccess, Stateid, Status,
    Write, WriteOk,
};
use rpc::xdr::Opaque;
use runtime::Chain;

use super::attributes::{self, Known};
use super::compound::{Compound, Done, Place, Results as Reply};
use super::convert;
use crate::changing::Change;
use crate::file::File;
use crate::records::MOST_DATA;
use crate::reply::{Apart, Where};

/// The rights that can be asked for of a file without extended attributes.
const RIGHTS: u32 =
    access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE;

pub(super) async fn get_attributes(c: &Compound<'_>, requested: Bitmap, to: &mut Reply<'_, '_>) -> Done {
    attributes::readable(requested)?;
    let known = Known::now(c, c.current()?, requested).await?;
    to.push(&Results::GetAttr(Outcome::Ok(Fattr::new(requested, &known.attributes()))));
    Ok(())
}

/// VERIFY and NVERIFY: whether the attributes are these.
pub(super) async fn are(c: &Compound<'_>, given: &Fattr<'_>) -> Result<bool, Status> {
    attributes::comparable(given.set(), c.minor)?;
    let known = Known::now(c, c.current()?, given.set()).await?;
    Ok(Fattr::new(given.set(), &known.attributes()) == *given)
}

pub(super) async fn set_attributes(c: &Compound<'_>, what: &SetAttr<'_>, to: &mut Reply<'_, '_>) -> Done {
    let file = c.writable()?;
    let set = attributes::to_set(&what.attributes, c.minor)?;
    if set.size.is_some() {
        file.regular()
            .await
            .map_err(|status| if status == Status::IsDir { status } else { Status::Inval })?;
        may(c, file, what.stateid, ShareAccess::Write)?;
    }
    if !set.is_empty() {
        let _change = c.changes().of(file)?;
        file.done(file.tree().set_attributes(&file.caller, &file.node, &set, None).await)?;
    }
    to.push(&Results::SetAttr(Outcome::Ok(what.attributes.set())));
    Ok(())
}

pub(super) async fn access(c: &Compound<'_>, asked: u32, to: &mut Reply<'_, '_>) -> Done {
    let granted = match c.current()? {
        Place::Above(_) => {
            AccessOk { supported: asked & RIGHTS, access: asked & (access::READ | access::LOOKUP) }
        }
        Place::File(file) => {
            let (mut bits, _) = file.done(file.access().await)?;
            let mut supported = RIGHTS;
            if c.minor > 1 && file.tree().limits().extended_attributes {
                supported |= access::XAREAD | access::XAWRITE | access::XALIST;
                bits |= if bits & access::READ != 0 { access::XAREAD | access::XALIST } else { 0 };
                bits |= if bits & access::MODIFY != 0 { access::XAWRITE } else { 0 };
            }
            AccessOk { supported: asked & supported, access: asked & bits }
        }
    };
    to.push(&Results::Access(Outcome::Ok(granted)));
    Ok(())
}

pub(super) async fn read_link(c: &mut Compound<'_>, to: &mut Reply<'_, '_>) -> Done {
    let file = c.file(Status::WrongType)?;
    let target = file.tree().read_link(&file.caller, &file.node).await;
    let target = match target {
        Err(tree::TreeError::Invalid) => return Err(Status::WrongType.into()),
        target => file.done(target)?,
    };
    let path = Opaque::new(&target.path).map_err(|_| Status::NameTooLong)?;
    let len = path.bytes().len();
    to.push(&Results::ReadLink(Outcome::Ok(path)));
    let at = to.position() - len.next_multiple_of(4);
    c.apart.push(Apart { at, index: c.reducible, item: Where::Within(len) });
    Ok(())
}

/// Checks that the stateid permits such access to the data. A write counts as a change, which the
/// caller keeps until the write has ended: an open may be closed meanwhile.
pub(super) fn may<'c>(
    c: &Compound<'c>,
    file: &File,
    stateid: Stateid,
    access: ShareAccess,
) -> Result<Option<Change<'c>>, Status> {
    let stateid = c.stateid(stateid)?;
    let changing = &c.client.shared.state.changing;
    let change = access.writes().then(|| changing.begin(file.export.id, &file.node));
    let handle = c.model.handle(&file.export, &file.node);
    c.state(|state, now, client| state.check_io(now, Some(client), &handle, stateid, access))?;
    Ok(change)
}

pub(super) async fn read(c: &mut Compound<'_>, what: Read, to: &mut Reply<'_, '_>) -> Done {
    let file = c.file(Status::IsDir)?;
    c.client.admit(file, false, what.count.min(MOST_DATA).into()).await;
    may(c, file, what.stateid, ShareAccess::Read)?;
    let len = what.count.min(MOST_DATA) as usize;
    let read = file.done(file.tree().read(&file.caller, &file.node, what.offset, len).await)?;
    let length = read.data.len() as u32;
    file.tally.count(|counts| counts.read_bytes += u64::from(length));
    to.push(&Results::Read(Outcome::Ok(ReadOk { eof: read.eof, length })));
    if length > 0 {
        let item = Where::Outside(read.data);
        c.apart.push(Apart { at: to.position(), index: c.reducible, item });
    }
    Ok(())
}

pub(super) async fn write(c: &Compound<'_>, what: Write, data: Chain, to: &mut Reply<'_, '_>) -> Done {
    let file = c.writable()?;
    if what.length > MOST_DATA {
        return Err(Status::Inval.into());
    }
    c.client.admit(file, true, what.length.into()).await;
    let _change = may(c, file, what.stateid, ShareAccess::Write)?;
    let stability = convert::stability(what.stable);
    let written = file.tree().write(&file.caller, &file.node, what.offset, data, stability).await;
    let written = file.done(written)?;
    file.tally.count(|counts| counts.written_bytes += written.len as u64);
    to.push(&Results::Write(Outcome::Ok(WriteOk {
        count: written.len as u32,
        committed: convert::stable(written.stability),
        verifier: convert::verifier(written.verifier),
    })));
    Ok(())
}

pub(super) async fn commit(c: &Compound<'_>, what: Commit, to: &mut Reply<'_, '_>) -> Done {
    let file = c.writable()?;
    let commit = file.tree().commit(&file.caller, &file.node, what.offset, what.count.into());
    let committed = file.done(commit.await)?;
    to.push(&Results::Commit(Outcome::Ok(convert::verifier(committed.verifier))));
    Ok(())
}
