//! NFS version 3: each procedure as operations of a tree (RFC 1813 §3.3).

mod convert;
mod directories;
mod files;

use std::sync::Arc;

use nfs::v3::{Arguments, Outcome, Procedure, Results, Status, Wcc};
use nfs::v4::ShareAccess;
use runtime::Chain;

use crate::call::Accepted;
use crate::caller::Identity;
use crate::changes::Changes;
use crate::changing::{Change, NamedChange};
use crate::client::Client;
use crate::file::File;
use crate::model::{BadHandle, Edition};
use crate::reply::Reply;

/// Number of times that a retransmitted call may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Once {
    /// As often as it comes: it changes nothing.
    Any,
    /// Again, but not while it is being executed: an old WRITE must not come after a newer one.
    AtATime,
    /// Never again: another time it would fail.
    Ever,
}

pub(crate) fn once(procedure: Procedure) -> Once {
    match procedure {
        Procedure::Write => Once::AtATime,
        Procedure::SetAttr
        | Procedure::Create
        | Procedure::MkDir
        | Procedure::Symlink
        | Procedure::MkNod
        | Procedure::Remove
        | Procedure::RmDir
        | Procedure::Rename
        | Procedure::Link => Once::Ever,
        _ => Once::Any,
    }
}

/// A call that is being executed.
struct Call<'c> {
    model: Arc<Edition>,
    client: &'c Client,
    identity: &'c Identity,
    xid: u32,
}

impl File {
    /// # Errors
    /// [`Status::RoFs`] if the client may only read.
    fn writable(self) -> Result<Self, Status> {
        if self.rule.read_only { Err(Status::RoFs) } else { Ok(self) }
    }

    /// Its attributes as they are now, for a reply that has no other use for them.
    async fn attributes(&self) -> Option<nfs::v3::Attributes> {
        let attributes = self.tree().attributes(&self.node).await.ok()?;
        Some(convert::attributes(&self.export, &attributes))
    }

    /// The same as consistency data of an operation that failed.
    async fn wcc(&self) -> Wcc {
        Wcc { before: None, after: self.attributes().await }
    }
}

impl Call<'_> {
    /// The file of a handle.
    ///
    /// # Errors
    /// The status of a handle that names nothing, or nothing for this client.
    fn file(&self, handle: nfs::v3::Handle<'_>) -> Result<File, Status> {
        let (export, node) = self.model.file(handle.bytes()).map_err(|bad| match bad {
            BadHandle::Forged => Status::BadHandle,
            BadHandle::Gone => Status::Stale,
        })?;
        let rule = export.rule(self.client.peer.ip()).ok_or(Status::Acces)?;
        let file = File::new(export, node, rule, self.identity, &self.client.tallies);
        file.tally.count(|counts| counts.calls += 1);
        Ok(file)
    }

    /// Begins a change of the file, or a name of it, if NFSv4's clients let it be changed.
    ///
    /// # Errors
    /// JUKEBOX: not yet.
    fn change(&self, file: &File) -> Result<Change<'_>, Status> {
        self.changes().of(file).map_err(convert::denied)
    }

    /// The same for the file that a name names.
    async fn change_name(&self, directory: &File, name: &[u8]) -> Result<NamedChange<'_>, Status> {
        self.changes().of_name(directory, name).await.map_err(convert::denied)
    }

    /// The same for the data of the file that a name names.
    ///
    /// # Errors
    /// ACCES: one denies it. JUKEBOX: not yet.
    async fn change_named_data(&self, directory: &File, name: &[u8]) -> Result<NamedChange<'_>, Status> {
        self.changes().of_named_data(directory, name).await.map_err(convert::denied)
    }

    /// The same for the file's data.
    ///
    /// # Errors
    /// ACCES: one denies it. JUKEBOX: not yet.
    fn change_data(&self, file: &File) -> Result<Change<'_>, Status> {
        self.changes().of_data(file).map_err(convert::denied)
    }

    fn changes(&self) -> Changes<'_> {
        Changes { state: &self.client.shared.state, model: &self.model, client: None }
    }

    /// Whether NFSv4's clients let the file be read.
    ///
    /// # Errors
    /// ACCES: one denies it.
    fn may_read(&self, file: &File) -> Result<(), Status> {
        let handle = || self.model.handle(&file.export, &file.node);
        self.client.shared.state.may_access(ShareAccess::Read, handle).map_err(convert::denied)
    }

    /// A reply with these results.
    fn reply(&self, results: &Results<'_>) -> Reply {
        Reply::with(self.xid, |to| results.write(to))
    }
}

/// Executes a call. `data` is that of a WRITE.
pub(crate) async fn execute(
    client: &Client,
    accepted: &Accepted,
    arguments: Arguments<'_>,
    data: Chain,
) -> Reply {
    let call = Call { model: client.model(), client, identity: &accepted.identity, xid: accepted.xid };
    match arguments {
        Arguments::Null(()) => call.reply(&Results::Null(())),
        Arguments::GetAttr(handle) => files::get_attributes(&call, handle).await,
        Arguments::SetAttr(what) => files::set_attributes(&call, what).await,
        Arguments::Lookup(place) => directories::lookup(&call, place).await,
        Arguments::Access(what) => files::access(&call, what).await,
        Arguments::ReadLink(handle) => files::read_link(&call, handle).await,
        Arguments::Read(what) => files::read(&call, what).await,
        Arguments::Write(what) => files::write(&call, what, data).await,
        Arguments::Create(what) => directories::create_file(&call, what).await,
        Arguments::MkDir(what) => directories::create_directory(&call, what).await,
        Arguments::Symlink(what) => directories::create_symlink(&call, what).await,
        Arguments::MkNod(what) => directories::create_special(&call, what).await,
        Arguments::Remove(place) => {
            let outcome = directories::remove(&call, place, tree::RemovedKind::File).await;
            call.reply(&Results::Remove(outcome))
        }
        Arguments::RmDir(place) => {
            let outcome = directories::remove(&call, place, tree::RemovedKind::Directory).await;
            call.reply(&Results::RmDir(outcome))
        }
        Arguments::Rename(what) => directories::rename(&call, what).await,
        Arguments::Link(what) => directories::link(&call, what).await,
        Arguments::ReadDir(what) => directories::read_dir(&call, what).await,
        Arguments::ReadDirPlus(what) => directories::read_dir_plus(&call, what).await,
        Arguments::FsStat(handle) => files::file_system_space(&call, handle).await,
        Arguments::FsInfo(handle) => files::file_system_limits(&call, handle).await,
        Arguments::PathConf(handle) => files::path_limits(&call, handle).await,
        Arguments::Commit(what) => files::commit(&call, what).await,
    }
}

/// An error that has nothing with it but the file's attributes.
async fn failed<T>(file: &File, error: tree::TreeError) -> Outcome<T, Option<nfs::v3::Attributes>> {
    file.note(error);
    Outcome::Err(convert::status(error), file.attributes().await)
}
