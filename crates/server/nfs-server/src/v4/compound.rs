//! [`Compound`]: the state that a COMPOUND carries from one operation to the next, and the files of
//! handles and of places in the pseudo file system.

use std::sync::Arc;

use nfs::v4::state::{Current, Running};
use nfs::v4::{ClientId, Name, ReplyWriter, Stateid, Status};
use tree::{Attributes, Kind, NodeId, TreeError};

use super::convert;
use crate::caller::Identity;
use crate::changes::Changes;
use crate::client::Client;
use crate::file::File;
use crate::handle::Bytes;
use crate::model::Edition;
use crate::reply::{Apart, Aparts};
use crate::state::Machine;

/// A file, or a directory above the exports.
#[derive(Clone)]
pub(super) enum Place {
    /// A directory of the pseudo file system, by its place.
    Above(usize),
    File(File),
}

/// Why an operation failed.
pub(super) enum Failed {
    /// With this status, and no more to say.
    With(Status),
    /// Its result is written.
    Said,
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::With(status)
    }
}

/// The end of an operation. If it was done, its result is written.
pub(super) type Done = Result<(), Failed>;

/// Writer of the results.
pub(super) type Results<'w, 'b> = ReplyWriter<'w, 'b>;

/// A COMPOUND that is being executed.
pub(super) struct Compound<'c> {
    pub client: &'c Client,
    pub model: Arc<Edition>,
    pub identity: &'c Identity,
    /// 1 or 2.
    pub minor: u32,
    /// Behind its SEQUENCE.
    pub running: Option<Running>,
    pub current: Option<Place>,
    pub saved: Option<Place>,
    pub stateids: Current,
    /// The items that may go apart: the data of READs, which are not among the reply's bytes, and
    /// the paths of links, which are.
    pub apart: Aparts,
    /// Results so far that may have such an item.
    pub reducible: usize,
    /// The client wants the reply to be kept.
    pub cache: bool,
    /// Bytes that the reply may have, with the mark of its record.
    pub limit: usize,
}

impl Compound<'_> {
    /// Runs `act` on the state, for the session's client, with the present time.
    pub(super) fn state<T>(
        &self,
        act: impl FnOnce(&mut Machine, std::time::Duration, ClientId) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let client = self.session_client()?;
        self.client.shared.state.with(|state, now| act(state, now, client))
    }

    /// The session's client.
    pub(super) fn session_client(&self) -> Result<ClientId, Status> {
        Ok(self.running.as_ref().ok_or(Status::OpNotInSession)?.client())
    }

    /// Changes for the session's client.
    pub(super) fn changes(&self) -> Changes<'_> {
        let client = self.running.as_ref().map(Running::client);
        Changes { state: &self.client.shared.state, model: &self.model, client }
    }

    /// The stateid that an argument means.
    pub(super) fn stateid(&self, of: Stateid) -> Result<Stateid, Status> {
        self.stateids.resolve(of)
    }

    pub(super) fn current(&self) -> Result<&Place, Status> {
        self.current.as_ref().ok_or(Status::NoFileHandle)
    }

    /// The current file, which is none of the pseudo file system.
    ///
    /// # Errors
    /// `above` if it is.
    pub(super) fn file(&self, above: Status) -> Result<&File, Status> {
        in_export(self.current()?, above)
    }

    /// The current file, to be changed.
    ///
    /// # Errors
    /// ROFS.
    pub(super) fn writable(&self) -> Result<&File, Status> {
        writable(self.current()?)
    }

    /// Makes a file the current one.
    pub(super) fn go_to(&mut self, place: Place) {
        self.current = Some(place);
        self.stateids.clear();
    }

    /// The place that a handle names.
    pub(super) fn of_handle(&self, handle: &[u8]) -> Result<Place, Status> {
        let (export, node) = self.model.handles.read(handle).ok_or(Status::BadHandle)?;
        if export == self.model.pseudo.export {
            return self.model.pseudo.of(&node).map(Place::Above).ok_or(Status::Stale);
        }
        let place = self.model.exports.iter().position(|one| one.id == export).ok_or(Status::Stale)?;
        let file = self.of_export(place, Some(node))?;
        file.tally.count(|counts| counts.calls += 1);
        Ok(Place::File(file))
    }

    /// A file of an export, or the export's root.
    ///
    /// # Errors
    /// ACCESS: nothing of it is for this client.
    fn of_export(&self, place: usize, node: Option<NodeId>) -> Result<File, Status> {
        let export = &self.model.exports[place];
        let rule = export.rule(self.client.peer.ip()).ok_or(Status::Access)?;
        let node = node.unwrap_or_else(|| export.config.tree.root());
        Ok(File::new(export, node, rule, self.identity, &self.client.tallies))
    }

    /// The place at a node of the pseudo file system: an export, or a directory above some.
    pub(super) fn at(&self, node: usize) -> Result<Place, Status> {
        match self.model.pseudo.nodes[node].export {
            Some(export) => self.of_export(export, None).map(Place::File),
            None => Ok(Place::Above(node)),
        }
    }

    /// The place of the pseudo file system where `file` is, if it is the root of its export.
    pub(super) fn mounted(&self, file: &File) -> Option<usize> {
        if file.node != file.tree().root() {
            return None;
        }
        let export = self.model.exports.iter().position(|one| one.id == file.export.id)?;
        self.model.pseudo.of_export(export)
    }

    /// Bytes that the reply may still have behind `position`; `None` if it is too long already.
    pub(super) fn left(&self, position: usize) -> Option<usize> {
        let apart: usize = self.apart.iter().map(Apart::padded_len).sum();
        self.limit.checked_sub(position + apart)
    }

    /// The handle of a place.
    pub(super) fn handle(&self, place: &Place) -> Bytes {
        match place {
            Place::File(file) => self.model.handle(&file.export, &file.node),
            Place::Above(node) => {
                let pseudo = &self.model.pseudo;
                // Eight bytes fit.
                let id = NodeId::new(&pseudo.nodes[*node].id.to_be_bytes());
                id.map(|id| self.model.handles.make(pseudo.export, &id)).unwrap_or_default()
            }
        }
    }
}

impl File {
    /// Another file of the same export.
    pub(super) fn beside(&self, node: NodeId) -> Self {
        Self { node, ..self.clone() }
    }

    /// The status of an operation of the tree.
    pub(super) fn done<T>(&self, result: Result<T, TreeError>) -> Result<T, Status> {
        result.map_err(|error| {
            self.note(error);
            convert::status(error)
        })
    }

    /// The attributes.
    pub(super) async fn now(&self) -> Result<Attributes, Status> {
        self.done(self.tree().attributes(&self.node).await)
    }

    /// Checks that it is a regular file, and returns the attributes.
    ///
    /// # Errors
    /// ISDIR, SYMLINK, WRONG_TYPE.
    pub(super) async fn regular(&self) -> Result<Attributes, Status> {
        let of = self.now().await?;
        match of.kind {
            Kind::Regular => Ok(of),
            Kind::Directory => Err(Status::IsDir),
            Kind::Symlink => Err(Status::Symlink),
            _ => Err(Status::WrongType),
        }
    }
}

pub(super) fn in_export(place: &Place, above: Status) -> Result<&File, Status> {
    match place {
        Place::File(file) => Ok(file),
        Place::Above(_) => Err(above),
    }
}

pub(super) fn writable(place: &Place) -> Result<&File, Status> {
    let file = in_export(place, Status::RoFs)?;
    if file.rule.read_only { Err(Status::RoFs) } else { Ok(file) }
}

/// Checks a name.
///
/// # Errors
/// INVAL, BADNAME, BADCHAR (RFC 8881 §14.5).
pub(super) fn checked(name: Name<'_>) -> Result<&[u8], Status> {
    match name.bytes() {
        [] => Err(Status::Inval),
        b"." | b".." => Err(Status::BadName),
        name if name.contains(&b'/') || name.contains(&0) => Err(Status::BadChar),
        name => Ok(name),
    }
}
