//! [`Opened`]: a file that a process has open, with its locks and its delegation.

use std::cell::Cell;

use nfs::v4::{
    Arguments, Claim, ClientId, Close, Delegation, DelegationType, Handle, Lock, LockOutcome, LockType,
    LockU, Locker, NewLockOwner, OldLockOwner, Open, OpenOk, Outcome, OwnerId, Results, StateOwner, Stateid,
    Status, flags,
};

use super::Books;
use super::client::{Client, NoReply, Reply};
use super::oracle::{HoldId, Owner, What};

/// Parts of a file with separate locks, of [`CELL`] bytes each.
pub(super) const CELLS: usize = 4;
/// Bytes of a cell: one number.
pub(super) const CELL: u64 = 8;

/// The lock of a cell: whether it is for writing, and its number in the oracle.
pub(super) type Locked = Option<(bool, HoldId)>;

/// An open file.
pub(super) struct Opened {
    pub(super) file: usize,
    handle: Vec<u8>,
    owner: Owner,
    pub(super) access: u32,
    deny: u32,
    share: HoldId,
    open: Cell<Stateid>,
    locks: Cell<Option<Stateid>>,
    pub(super) cells: Cell<[Locked; CELLS]>,
    delegation: Cell<Option<(Stateid, HoldId)>>,
    lost: Cell<bool>,
}

/// Parameters of a process's OPEN.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) file: usize,
    pub(super) access: u32,
    pub(super) deny: u32,
    pub(super) delegation: bool,
}

/// The owner of a process's opens and locks.
pub(super) fn name(owner: &Owner) -> StateOwner<'static> {
    const NAMES: [&[u8]; 8] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"];
    StateOwner { client: ClientId(0), owner: OwnerId::new(NAMES[owner.lane]).unwrap_or(OwnerId::EMPTY) }
}

impl Wish {
    /// OPEN.
    pub(super) fn open<'a>(&self, owner: &Owner, claim: Claim<'a>) -> Arguments<'a> {
        let want = if self.delegation { flags::want::READ_DELEG } else { flags::want::NO_DELEG };
        Arguments::Open(Open {
            seqid: 0,
            share_access: self.access | want,
            share_deny: self.deny,
            owner: name(owner),
            create: None,
            claim,
        })
    }
}

/// The result of OPEN among others.
pub(super) fn opened<'a>(results: &[nfs::v4::Located<Results<'a>>]) -> Option<OpenOk<'a>> {
    results.iter().find_map(|one| match &one.value {
        Results::Open(Outcome::Ok(opened)) => Some(*opened),
        _ => None,
    })
}

/// The stateid of a read delegation, and whether it must be returned at once.
fn delegation(opened: &OpenOk<'_>) -> Option<(Stateid, bool)> {
    match &opened.delegation {
        Delegation::Read(read) => Some((read.stateid, read.recall)),
        _ => None,
    }
}

impl Opened {
    /// The state that an OPEN returned. `delegated` is the delegation's number in the oracle.
    pub(super) fn new(
        owner: Owner,
        wish: Wish,
        share: HoldId,
        delegated: Option<HoldId>,
        reply: &Reply,
    ) -> Result<Self, String> {
        let results = reply.done()?;
        let found = opened(&results).ok_or("no result of OPEN")?;
        let handle = results.iter().find_map(|one| match &one.value {
            Results::GetFh(Outcome::Ok(handle)) => Some(handle.bytes().to_vec()),
            _ => None,
        });
        Ok(Self {
            file: wish.file,
            handle: handle.ok_or("no result of GETFH")?,
            owner,
            access: wish.access,
            deny: wish.deny,
            share,
            open: Cell::new(found.stateid),
            locks: Cell::new(None),
            cells: Cell::default(),
            delegation: Cell::new(delegation(&found).map(|it| it.0).zip(delegated)),
            lost: Cell::new(false),
        })
    }

    pub(super) fn put(&self) -> Arguments<'_> {
        Arguments::PutFh(Handle::new(&self.handle).unwrap_or(Handle::EMPTY))
    }

    /// The stateid for READ and WRITE.
    pub(super) fn stateid(&self) -> Stateid {
        self.locks.get().unwrap_or(self.open.get())
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    pub(super) fn has_delegation(&self) -> bool {
        self.delegation.get().is_some()
    }

    pub(super) fn is_delegated_as(&self, stateid: Stateid) -> bool {
        self.delegation.get().is_some_and(|(own, _)| own.other == stateid.other)
    }

    fn holds(&self) -> impl Iterator<Item = HoldId> {
        let locks = self.cells.get().into_iter().flatten().map(|(_, hold)| hold);
        locks.chain(self.delegation.get().map(|(_, hold)| hold)).chain([self.share])
    }

    /// The server does not know it any more.
    pub(super) fn forget(&self, books: &Books) {
        self.holds().for_each(|hold| books.oracle.borrow_mut().gone(hold));
    }

    /// LOCK of cells.
    pub(super) fn lock(
        &self,
        (first, end): (usize, usize),
        write: bool,
        reclaim: bool,
    ) -> Arguments<'static> {
        let locker = match self.locks.get() {
            Some(locks) => Locker::Old(OldLockOwner { locks, seqid: 0 }),
            None => Locker::New(NewLockOwner {
                open_seqid: 0,
                open: self.open.get(),
                lock_seqid: 0,
                owner: name(&self.owner),
            }),
        };
        Arguments::Lock(Lock {
            kind: if write { LockType::Write } else { LockType::Read },
            reclaim,
            offset: first as u64 * CELL,
            length: (end - first) as u64 * CELL,
            locker,
        })
    }

    /// LOCKU of cells; `None` if there were no locks.
    pub(super) fn unlock(&self, (first, end): (usize, usize)) -> Option<Arguments<'static>> {
        let locks = self.locks.get()?;
        let (offset, length) = (first as u64 * CELL, (end - first) as u64 * CELL);
        Some(Arguments::LockU(LockU { kind: LockType::Read, seqid: 0, locks, offset, length }))
    }

    /// Takes the stateid of a LOCK or LOCKU that was done.
    pub(super) fn locked(&self, reply: &Reply) -> Result<(), String> {
        match reply.done()?.last().map(|one| &one.value) {
            Some(Results::Lock(LockOutcome::Ok(stateid)) | Results::LockU(Outcome::Ok(stateid))) => {
                self.locks.set(Some(*stateid));
                Ok(())
            }
            other => Err(format!("no result of LOCK: {other:?}")),
        }
    }

    /// CLOSE.
    pub(super) fn close(&self) -> Arguments<'static> {
        Arguments::Close(Close { seqid: 0, stateid: self.open.get() })
    }

    /// Handles an error of an operation on it: the server has lost it. That is wrong if it is held
    /// for sure.
    pub(super) fn lose(&self, books: &Books, what: &str, error: Status) -> Result<(), String> {
        self.lost.set(true);
        let held = books.oracle.borrow().is_held(self.share);
        self.forget(books);
        if held {
            Err(format!("{what} of what {:?} has open ended with {error:?}", self.owner))
        } else {
            Ok(())
        }
    }

    /// Reclaims it after the server's restart number `start`.
    pub(super) async fn reclaim(&self, client: &Client, start: u64) -> Result<(), NoReply> {
        let books = &client.books;
        self.locks.set(None);
        let delegated = self.delegation.take();
        let kind = if delegated.is_some() { DelegationType::Read } else { DelegationType::None };
        let wish =
            Wish { file: self.file, access: self.access, deny: self.deny, delegation: delegated.is_some() };
        let all = || delegated.map(|(_, hold)| hold).into_iter().chain([self.share]);
        all().for_each(|hold| books.oracle.borrow_mut().reclaim(hold));
        let reply = client.patiently(&[self.put(), wish.open(&self.owner, Claim::Previous(kind))]).await;
        // Reclaimed again after the next restart.
        self.delegation.set(delegated);
        let reply = reply?;
        if let Some(error) = reply.error() {
            let must = books.oracle.borrow().must_reclaim(self.share);
            self.lost.set(true);
            return match must {
                true => Err(NoReply::Wrong(format!("{:?} cannot reclaim an open: {error:?}", self.owner))),
                false => Ok(()),
            };
        }
        let results = reply.done()?;
        let found = opened(&results).ok_or_else(|| "no result of OPEN".to_owned())?;
        self.open.set(found.stateid);
        books.oracle.borrow_mut().has_reclaimed(self.share, start)?;
        if let Some((_, hold)) = delegated {
            match delegation(&found) {
                Some((stateid, recall)) => {
                    books.oracle.borrow_mut().has_reclaimed(hold, start)?;
                    self.delegation.set(Some((stateid, hold)));
                    if recall {
                        client.recall(stateid);
                    }
                }
                None => {
                    books.oracle.borrow_mut().gone(hold);
                    self.delegation.set(None);
                }
            }
        }
        for cell in 0..CELLS {
            let Some((write, hold)) = self.cells.get()[cell] else { continue };
            books.oracle.borrow_mut().reclaim(hold);
            let reply = client.patiently(&[self.put(), self.lock((cell, cell + 1), write, true)]).await?;
            match reply.error() {
                None => {
                    self.locked(&reply)?;
                    books.oracle.borrow_mut().has_reclaimed(hold, start)?;
                }
                Some(error) if books.oracle.borrow().must_reclaim(hold) => {
                    return Err(NoReply::Wrong(format!("{:?} cannot reclaim a lock: {error:?}", self.owner)));
                }
                Some(_) => {
                    books.oracle.borrow_mut().gone(hold);
                    let mut cells = self.cells.get();
                    cells[cell] = None;
                    self.cells.set(cells);
                }
            }
        }
        Ok(())
    }

    /// Returns the delegation, if there is one.
    pub(super) async fn return_delegation(&self, client: &Client, slot: usize) -> Result<(), NoReply> {
        client.ready().await?;
        let Some((stateid, hold)) = self.delegation.take() else { return Ok(()) };
        let oracle = &client.books.oracle;
        oracle.borrow_mut().give_up(hold);
        client.once(slot, &[self.put(), Arguments::DelegReturn(stateid)], &[]).await?;
        oracle.borrow_mut().gone(hold);
        Ok(())
    }

    /// Before it is closed: nothing of it is surely held any more.
    pub(super) fn give_up(&self, books: &Books) {
        self.holds().for_each(|hold| books.oracle.borrow_mut().give_up(hold));
    }

    /// Its client has started anew.
    pub(super) fn abandon(&self, books: &Books) {
        self.lost.set(true);
        self.give_up(books);
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// A cell's lock, as the oracle knows it.
    pub(super) fn lock_of(&self, cell: usize, write: bool) -> What {
        What::Lock { file: self.file, cell, write }
    }
}
