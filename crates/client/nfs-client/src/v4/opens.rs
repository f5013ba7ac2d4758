//! Opens of NFSv4: each has an owner of its own, so that closing one closes no other.

use std::cell::Cell;

use nfs::v4::flags::want;
use nfs::v4::{
    Arguments, Claim, ClientId, CreateHow, Delegation, DelegationType, Located, Open as OpenArguments,
    Outcome, OwnerId, Results, StateOwner, Stateid,
};
use rpc::xdr::Opaque;

use super::session::Done;
use crate::error::Error;
use crate::types::Handle;

/// An open file.
pub(crate) struct Open {
    pub file: Handle,
    owner: [u8; 8],
    access: u32,
    stateid: Cell<Stateid>,
}

impl Open {
    pub fn new(file: Handle, number: u64, write: bool) -> Self {
        let access = if write { 3 } else { 1 };
        Open { file, owner: number.to_be_bytes(), access, stateid: Cell::new(Stateid::INVALID) }
    }

    /// The same open, with the handle of the file once it is known.
    pub fn of(self, file: Handle) -> Self {
        Open { file, ..self }
    }

    /// The stateid for READ and WRITE: the latest of this open.
    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: 0, ..self.stateid.get() }
    }

    /// The arguments of an OPEN.
    pub fn arguments<'a>(&'a self, claim: Claim<'a>, create: Option<CreateHow<'a>>) -> Arguments<'a> {
        let owner = OwnerId::new(&self.owner).unwrap_or(Opaque::EMPTY);
        Arguments::Open(OpenArguments {
            seqid: 0,
            share_access: self.access | want::NO_DELEG,
            share_deny: 0,
            owner: StateOwner { client: ClientId(0), owner },
            create,
            claim,
        })
    }

    /// Opens the file by its handle.
    pub fn open(&self) -> [Arguments<'_>; 2] {
        [Arguments::PutFh(self.file.v4()), self.arguments(Claim::Fh(()), None)]
    }

    /// Opens it again after the server has restarted.
    pub fn reclaim(&self) -> [Arguments<'_>; 2] {
        [Arguments::PutFh(self.file.v4()), self.arguments(Claim::Previous(DelegationType::None), None)]
    }

    /// Takes the stateid from the results of such an OPEN. Returns the stateid of a delegation,
    /// which this client never requests.
    pub fn take(&self, done: &Done) -> Result<Option<Stateid>, Error> {
        let results = done.results()?;
        let opened = results.iter().find_map(|one| match one {
            Located { value: Results::Open(Outcome::Ok(opened)), .. } => Some(opened),
            _ => None,
        });
        let opened = opened.ok_or(Error::Nonsense("the results are of another operation"))?;
        self.stateid.set(opened.stateid);
        Ok(match &opened.delegation {
            Delegation::Read(read) => Some(read.stateid),
            Delegation::Write(write) => Some(write.stateid),
            Delegation::None(()) | Delegation::NoneExt(_) => None,
        })
    }
}
