//! [`Changes`]: files are changed only when no client of NFSv4 holds a delegation of them, which
//! says that they do not change. While they are changed, no client gets one.

use nfs::v4::{ClientId, ShareAccess, Status};

use crate::changing::{Change, NamedChange};
use crate::file::File;
use crate::model::Model;
use crate::state::State;

/// Changes for one client.
pub(crate) struct Changes<'c> {
    pub state: &'c State,
    pub model: &'c Model,
    /// `None` for version 3.
    pub client: Option<ClientId>,
}

impl<'c> Changes<'c> {
    /// Begins a change of a file, which the caller keeps until it has ended. Recalls the
    /// delegations that other clients hold.
    ///
    /// # Errors
    /// DELAY while they hold them.
    pub(crate) fn of(&self, file: &File) -> Result<Change<'c>, Status> {
        let change = self.state.changing.begin(file.export.id, &file.node);
        self.state.may_change(self.client, || self.model.handle(&file.export, &file.node))?;
        Ok(change)
    }

    /// The same for the file of a name. If no file has this name, the operation itself fails later.
    ///
    /// # Errors
    /// DELAY.
    pub(crate) async fn of_name(&self, directory: &File, name: &[u8]) -> Result<NamedChange<'c>, Status> {
        self.named(directory, name, Self::of).await
    }

    /// The same for the data of the file of a name: see [`Self::of_data`].
    ///
    /// # Errors
    /// LOCKED, DELAY.
    pub(crate) async fn of_named_data(
        &self,
        directory: &File,
        name: &[u8],
    ) -> Result<NamedChange<'c>, Status> {
        self.named(directory, name, Self::of_data).await
    }

    async fn named(
        &self,
        directory: &File,
        name: &[u8],
        begin: impl Fn(&Self, &File) -> Result<Change<'c>, Status>,
    ) -> Result<NamedChange<'c>, Status> {
        let any = self.state.changing.begin_any();
        if !self.state.holds_files() {
            return Ok((any, None));
        }
        match directory.tree().lookup(&directory.caller, &directory.node, name).await {
            Ok(found) => Ok((any, Some(begin(self, &File { node: found.node, ..directory.clone() })?))),
            Err(_) => Ok((any, None)),
        }
    }

    /// The same for a WRITE of version 3, or a SETATTR of the size.
    ///
    /// # Errors
    /// LOCKED: an open denies it. DELAY.
    pub(crate) fn of_data(&self, file: &File) -> Result<Change<'c>, Status> {
        let change = self.state.changing.begin(file.export.id, &file.node);
        let handle = || self.model.handle(&file.export, &file.node);
        self.state.may_access(ShareAccess::Write, handle)?;
        Ok(change)
    }
}
