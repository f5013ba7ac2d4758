//! The operations of version 4.2 on ranges of files (RFC 7862 §15).

use nfs::v4::{
    Allocate, CloneRange, Content, CopyOk, CopyRange, CopyRequirements, Outcome, OutcomeOr, Results, Seek,
    SeekOk, ShareAccess, Stable, Stateid, Status, WriteResponse,
};
use tree::{Contents, TreeError};

use super::compound::{Compound, Done, Results as Reply, in_export};
use super::{convert, files};
use crate::changing::Change;
use crate::file::File;

pub(super) async fn allocate(c: &Compound<'_>, what: Allocate, to: &mut Reply<'_, '_>) -> Done {
    let file = c.writable()?;
    let _change = files::may(c, file, what.stateid, ShareAccess::Write)?;
    file.done(file.tree().allocate(&file.caller, &file.node, what.offset, what.length).await)?;
    to.push(&Results::Allocate(Outcome::Ok(())));
    Ok(())
}

pub(super) async fn deallocate(c: &Compound<'_>, what: Allocate, to: &mut Reply<'_, '_>) -> Done {
    let file = c.writable()?;
    let _change = files::may(c, file, what.stateid, ShareAccess::Write)?;
    file.done(file.tree().deallocate(&file.caller, &file.node, what.offset, what.length).await)?;
    to.push(&Results::Deallocate(Outcome::Ok(())));
    Ok(())
}

pub(super) async fn seek(c: &Compound<'_>, what: Seek, to: &mut Reply<'_, '_>) -> Done {
    let file = c.file(Status::IsDir)?;
    files::may(c, file, what.stateid, ShareAccess::Read)?;
    let contents = match what.what {
        Content::Data => Contents::Data,
        Content::Hole => Contents::Hole,
    };
    let offset = match file.tree().seek(&file.caller, &file.node, what.offset, contents).await {
        Err(TreeError::NoEntry) => return Err(Status::NxIo.into()),
        found => file.done(found)?,
    };
    let eof = offset >= file.now().await?.size;
    to.push(&Results::Seek(Outcome::Ok(SeekOk { eof, offset })));
    Ok(())
}

/// The saved file, to be read, and the current one, to be written, with the change of it. Both are
/// in one export.
fn pair<'c, 'o>(
    c: &'c Compound<'o>,
    from: Stateid,
    into: Stateid,
) -> Result<(&'c File, &'c File, Option<Change<'o>>), Status> {
    let source = in_export(c.saved.as_ref().ok_or(Status::NoFileHandle)?, Status::IsDir)?;
    let target = c.writable()?;
    if source.export.id != target.export.id {
        return Err(Status::XDev);
    }
    files::may(c, source, from, ShareAccess::Read)?;
    let change = files::may(c, target, into, ShareAccess::Write)?;
    Ok((source, target, change))
}

/// COPY. It is done when it is answered, and durable. It may be short.
pub(super) async fn copy(c: &Compound<'_>, what: &CopyRange<'_>, to: &mut Reply<'_, '_>) -> Done {
    if !what.source_servers.is_empty() {
        return Err(Status::NotSupp.into());
    }
    let (source, target, _change) = pair(c, what.source, what.destination)?;
    let len = if what.count == 0 { u64::MAX } else { what.count };
    let (from, into) = ((&source.node, what.source_offset), (&target.node, what.destination_offset));
    let count = target.done(target.tree().copy(&target.caller, from, into, len, false).await)?;
    let commit = target.tree().commit(&target.caller, &target.node, what.destination_offset, count);
    let committed = target.done(commit.await)?;
    // The number of copied bytes is known only now.
    c.client.admit(target, true, count).await;
    let verifier = convert::verifier(committed.verifier);
    to.push(&Results::Copy(OutcomeOr::Ok(CopyOk {
        response: WriteResponse { callback: None, count, committed: Stable::FileSync, verifier },
        requirements: CopyRequirements { consecutive: true, synchronous: true },
    })));
    Ok(())
}

pub(super) async fn clone(c: &Compound<'_>, what: CloneRange, to: &mut Reply<'_, '_>) -> Done {
    let (source, target, _change) = pair(c, what.source, what.destination)?;
    let (from, into) = ((&source.node, what.source_offset), (&target.node, what.destination_offset));
    target.done(target.tree().copy(&target.caller, from, into, what.count, true).await)?;
    to.push(&Results::Clone(Outcome::Ok(())));
    Ok(())
}
