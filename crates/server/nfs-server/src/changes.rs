//! [`Changes`]: files are changed only when no client of NFSv4 holds a delegation of them, which says
//! that they do not change.

use nfs::v4::{ClientId, Status};

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

impl Changes<'_> {
    /// Whether a file may be changed. Recalls the delegations that other clients hold.
    ///
    /// # Errors
    /// DELAY while they hold them.
    pub(crate) fn of(&self, file: &File) -> Result<(), Status> {
        self.state.may_change(self.client, || self.model.handle(&file.export, &file.node))
    }

    /// The same for the file that a name names, which is to be changed. What has no such name fails
    /// later.
    ///
    /// # Errors
    /// DELAY.
    pub(crate) async fn of_name(&self, directory: &File, name: &[u8]) -> Result<(), Status> {
        if !self.state.holds_files() {
            return Ok(());
        }
        match directory.tree().lookup(&directory.caller, &directory.node, name).await {
            Ok(found) => self.of(&File { node: found.node, ..directory.clone() }),
            Err(_) => Ok(()),
        }
    }
}
