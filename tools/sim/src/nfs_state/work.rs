//! Work of a client's process: it opens files, locks parts of them, and writes numbers under its
//! locks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use nfs::v4::{
    Arguments, Claim, Close, CreateHow, Fattr, Name, Open, Read, Stable, Stateid, Status, Write, flags,
};

use super::client::{Client, NoReply};
use super::held::{CELL, CELLS, Opened, Wish, name};
use super::oracle::{HoldId, Owner, What};
use super::{EXPORT, FILES};
use crate::random::Rng;

/// A process.
pub(super) struct Process {
    pub(super) client: Rc<Client>,
    pub(super) owner: Owner,
    pub(super) rng: RefCell<Rng>,
    /// Names that it has made.
    pub(super) made: Cell<u64>,
}

/// Result of a step. A step that was lost with its session is no fault.
type Step = Result<(), NoReply>;

pub(super) fn named(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap_or(Name::EMPTY)
}

/// Operations in the root of the export.
pub(super) fn in_export<'a>(operations: &[Arguments<'a>]) -> Vec<Arguments<'a>> {
    [&[Arguments::PutRootFh(()), Arguments::Lookup(named(EXPORT))], operations].concat()
}

impl Process {
    /// Takes `steps` steps.
    pub(super) async fn work(self, steps: usize, pause: u64) {
        for _ in 0..steps {
            let pause = self.rng.borrow_mut().below(pause);
            runtime::sleep(Duration::from_micros(pause)).await;
            if self.client.books.verdict.has_failed() {
                return;
            }
            if let Err(NoReply::Wrong(what)) = self.step().await {
                self.client.books.verdict.fail(format!("{:?}: {what}", self.owner));
            }
        }
        for opened in self.own() {
            if let Err(NoReply::Wrong(what)) = self.close(&opened).await {
                self.client.books.verdict.fail(format!("{:?}: {what}", self.owner));
            }
        }
    }

    fn chance(&self, per_mille: u64) -> bool {
        self.rng.borrow_mut().chance(per_mille)
    }

    fn pick<T: Copy>(&self, choices: &[T]) -> T {
        self.rng.borrow_mut().pick(choices)
    }

    fn note(&self, line: std::fmt::Arguments<'_>) {
        self.client.books.verdict.note(format_args!("{:?}: {line}", self.owner));
    }

    /// The files that it has open.
    fn own(&self) -> Vec<Rc<Opened>> {
        self.client.opened.borrow_mut().retain(|opened| !opened.is_lost());
        let all = self.client.opened.borrow();
        all.iter().filter(|opened| opened.owner() == self.owner).cloned().collect()
    }

    async fn step(&self) -> Step {
        let own = self.own();
        let free: Vec<usize> = (0..FILES).filter(|file| own.iter().all(|it| it.file != *file)).collect();
        let what = self.rng.borrow_mut().below(20);
        if self.chance(15) {
            let seconds = self.pick(&[5, 60, 120, 300]);
            self.note(format_args!("its client sleeps for {seconds} s"));
            self.client.sleep(Duration::from_secs(seconds));
            return Ok(());
        }
        if self.chance(10) {
            self.note(format_args!("its client starts anew"));
            self.client.restart();
            return Ok(());
        }
        if what == 19 {
            return self.make().await;
        }
        if own.is_empty() || what < 3 && !free.is_empty() {
            return self.open(self.pick(&free)).await;
        }
        let opened = own[self.rng.borrow_mut().index(own.len())].clone();
        match what {
            0..9 => self.lock(&opened).await,
            9..12 => self.unlock(&opened).await,
            12..15 => self.read(&opened).await,
            15..18 => self.write(&opened).await,
            _ => self.close(&opened).await,
        }
    }

    async fn open(&self, file: usize) -> Step {
        let access = self.pick(&[1, 1, 2, 3, 3, 3]);
        // Only one process of a client holds delegations.
        let delegation = access == 1 && self.owner.lane == 1;
        let deny = if delegation { 0 } else { self.pick(&[0, 0, 0, 0, 0, 1, 2, 3]) };
        let wish = Wish { file, access, deny, delegation };
        let oracle = &self.client.books.oracle;
        let asked: Cell<Option<HoldId>> = Cell::new(None);
        let delegated: Cell<Option<HoldId>> = Cell::new(None);
        let ask = || {
            let mut oracle = oracle.borrow_mut();
            [asked.take(), delegated.take()].into_iter().flatten().for_each(|before| oracle.gone(before));
            asked.set(Some(oracle.ask(self.owner, What::Share { file, access, deny })));
            delegated.set(delegation.then(|| oracle.ask(self.owner, What::Delegation { file })));
            Ok(())
        };
        let file_name = format!("file-{file}");
        let open = wish.open(&self.owner, Claim::Null(named(&file_name)));
        let all = in_export(&[open, Arguments::GetFh(())]);
        let reply = self.client.run(self.owner.lane, &all, &[], ask).await;
        let (Some(share), delegated) = (asked.get(), delegated.get()) else { return reply.map(drop) };
        let reply = reply.inspect_err(|_| {
            [Some(share), delegated].into_iter().flatten().for_each(|it| oracle.borrow_mut().give_up(it));
        })?;
        self.note(format_args!("open of file {file}, {access} {deny}: {:?}", reply.error()));
        match reply.error() {
            None => {}
            Some(Status::ShareDenied) => {
                delegated.into_iter().for_each(|it| oracle.borrow_mut().gone(it));
                return Ok(oracle.borrow_mut().denied(&[share])?);
            }
            Some(error) => return Err(NoReply::Wrong(format!("OPEN ended with {error:?}"))),
        }
        let opened = Opened::new(self.owner, wish, share, delegated, &reply)?;
        oracle.borrow_mut().granted(share)?;
        match delegated {
            Some(hold) if opened.has_delegation() => oracle.borrow_mut().granted(hold)?,
            Some(hold) => oracle.borrow_mut().gone(hold),
            None => {}
        }
        self.client.opened.borrow_mut().push(Rc::new(opened));
        Ok(())
    }

    /// Some cells in a row.
    fn range(&self) -> (usize, usize) {
        let mut rng = self.rng.borrow_mut();
        let first = rng.index(CELLS);
        (first, first + 1 + rng.index((CELLS - first).min(2)))
    }

    async fn lock(&self, opened: &Opened) -> Step {
        let range = self.range();
        let write = opened.access != 1 && (opened.access == 2 || self.chance(600));
        self.client.ready().await?;
        let oracle = &self.client.books.oracle;
        let before = opened.cells.get();
        let mut asked = Vec::new();
        for (cell, held) in before.iter().enumerate().take(range.1).skip(range.0) {
            match held {
                Some((writes, _)) if *writes == write => continue,
                // A read lock in place of a write lock: there may be neither until the answer.
                // answer.
                Some((true, hold)) => oracle.borrow_mut().give_up(*hold),
                _ => {}
            }
            asked.push((cell, oracle.borrow_mut().ask(self.owner, opened.lock_of(cell, write))));
        }
        let ids: Vec<HoldId> = asked.iter().map(|(_, id)| *id).collect();
        let give_up = || ids.iter().for_each(|id| oracle.borrow_mut().give_up(*id));
        let reply = self.on(opened, opened.lock(range, write, false), &[]).await;
        let Some(reply) = reply.inspect_err(|_| give_up())? else {
            give_up();
            return Ok(());
        };
        self.note(format_args!("lock of file {}, {range:?}, {write}: {:?}", opened.file, reply.error()));
        match reply.error() {
            None => opened.locked(&reply)?,
            Some(Status::Denied) => return Ok(oracle.borrow_mut().denied(&ids)?),
            Some(error) => {
                ids.iter().for_each(|id| oracle.borrow_mut().gone(*id));
                return self.failed(opened, "LOCK", error).await;
            }
        }
        let mut cells = opened.cells.get();
        for (cell, id) in asked {
            oracle.borrow_mut().granted(id)?;
            if let Some((_, before)) = cells[cell].replace((write, id)) {
                oracle.borrow_mut().gone(before);
            }
        }
        opened.cells.set(cells);
        Ok(())
    }

    async fn unlock(&self, opened: &Opened) -> Step {
        let range = self.range();
        self.client.ready().await?;
        let Some(unlock) = opened.unlock(range) else { return Ok(()) };
        let oracle = &self.client.books.oracle;
        let mut cells = opened.cells.get();
        let released: Vec<_> = (range.0..range.1).filter_map(|cell| cells[cell].take()).collect();
        opened.cells.set(cells);
        released.iter().for_each(|(_, hold)| oracle.borrow_mut().give_up(*hold));
        let Some(reply) = self.on(opened, unlock, &[]).await? else { return Ok(()) };
        self.note(format_args!("unlock of file {}, {range:?}: {:?}", opened.file, reply.error()));
        if let Some(error) = reply.error() {
            return self.failed(opened, "LOCKU", error).await;
        }
        opened.locked(&reply)?;
        released.iter().for_each(|(_, hold)| oracle.borrow_mut().gone(*hold));
        Ok(())
    }

    /// Runs an operation on an open file, in the current session; `None` if the file is lost.
    async fn on(
        &self,
        opened: &Opened,
        operation: Arguments<'_>,
        payload: &[u8],
    ) -> Result<Option<super::client::Reply>, NoReply> {
        if opened.is_lost() {
            return Ok(None);
        }
        self.client.once(self.owner.lane, &[opened.put(), operation], payload).await.map(Some)
    }

    /// Handles an error of an operation on an open file. In a grace period it waits.
    async fn failed(&self, opened: &Opened, what: &str, error: Status) -> Step {
        if matches!(error, Status::Grace | Status::Delay) {
            let pause = self.rng.borrow_mut().below(5000);
            runtime::sleep(Duration::from_millis(pause)).await;
            return Ok(());
        }
        Ok(opened.lose(&self.client.books, what, error)?)
    }

    async fn write(&self, opened: &Opened) -> Step {
        self.client.ready().await?;
        let Some((cell, hold)) = self.locked_cell(opened, true) else { return Ok(()) };
        let books = &self.client.books;
        let number = books.next_number();
        let (stateid, offset) = (opened.stateid(), cell as u64 * CELL);
        let write = Write { stateid, offset, stable: Stable::FileSync, length: CELL as u32 };
        let at = (opened.file, cell);
        // A process does not repeat a write when its session is lost.
        let reply = self.on(opened, Arguments::Write(write), &number.to_be_bytes()).await;
        let Some(reply) = reply.inspect_err(|_| books.wrote(at, number, false))? else { return Ok(()) };
        self.note(format_args!("write of {number} to {at:?}: {:?}", reply.error()));
        if let Some(error) = reply.error() {
            return self.failed(opened, "WRITE", error).await;
        }
        let held = books.oracle.borrow().is_held(hold);
        books.wrote(at, number, held);
        Ok(())
    }

    /// A cell that it has locked, perhaps for writing.
    fn locked_cell(&self, opened: &Opened, write: bool) -> Option<(usize, HoldId)> {
        let found = opened.cells.get().into_iter().enumerate().filter_map(|(cell, locked)| {
            let (writes, hold) = locked?;
            (writes || !write).then_some((cell, hold))
        });
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then(|| self.pick(&found))
    }

    async fn read(&self, opened: &Opened) -> Step {
        self.client.ready().await?;
        let locked = self.locked_cell(opened, false);
        let Some((cell, hold)) = locked.filter(|_| opened.access & 1 != 0) else { return Ok(()) };
        let books = &self.client.books;
        let was_held = books.oracle.borrow().is_held(hold);
        let read = Read { stateid: opened.stateid(), offset: cell as u64 * CELL, count: CELL as u32 };
        let Some(reply) = self.on(opened, Arguments::Read(read), &[]).await? else { return Ok(()) };
        if let Some(error) = reply.error() {
            return self.failed(opened, "READ", error).await;
        }
        if !was_held || !books.oracle.borrow().is_held(hold) {
            return Ok(());
        }
        let results = reply.results()?;
        let data = results.last().and_then(|one| reply.0.get(one.payload.clone())).unwrap_or_default();
        let mut bytes = [0; CELL as usize];
        bytes[..data.len()].copy_from_slice(data);
        let number = u64::from_be_bytes(bytes);
        self.note(format_args!("read of {number} from {:?}", (opened.file, cell)));
        Ok(books.read((opened.file, cell), number)?)
    }

    async fn close(&self, opened: &Rc<Opened>) -> Step {
        opened.return_delegation(&self.client, self.owner.lane).await?;
        self.client.ready().await?;
        if opened.is_lost() {
            return Ok(());
        }
        let books = &self.client.books;
        // From now on it is not reclaimed.
        self.client.opened.borrow_mut().retain(|other| !Rc::ptr_eq(other, opened));
        opened.give_up(books);
        let Some(reply) = self.on(opened, opened.close(), &[]).await? else { return Ok(()) };
        self.note(format_args!("close of file {}: {:?}", opened.file, reply.error()));
        if let Some(error) = reply.error() {
            return Err(NoReply::Wrong(format!("CLOSE ended with {error:?}")));
        }
        opened.forget(books);
        Ok(())
    }

    /// Makes a file of a new name and removes it. Each is executed once, even if it is sent several
    /// times.
    async fn make(&self) -> Step {
        self.made.set(self.made.get() + 1);
        let new = format!("new-{}-{}-{}", self.owner.client, self.owner.lane, self.made.get());
        let open = Arguments::Open(Open {
            seqid: 0,
            share_access: 3 | flags::want::NO_DELEG,
            share_deny: 0,
            owner: name(&self.owner),
            create: Some(CreateHow::Guarded(Fattr::EMPTY)),
            claim: Claim::Null(named(&new)),
        });
        let close = Arguments::Close(Close { seqid: 0, stateid: Stateid::CURRENT });
        let remove = Arguments::Remove(named(&new));
        for all in [in_export(&[open, close]), in_export(&[remove])] {
            let reply = self.client.run(self.owner.lane, &all, &[], || Ok(())).await?;
            self.note(format_args!("{new}: {:?}", reply.error()));
            if let Some(error) = reply.error() {
                let done: Vec<_> =
                    reply.results()?.into_iter().map(|one| format!("{:?}", one.value)).collect();
                return Err(NoReply::Wrong(format!("{new} was made or removed twice: {error:?} {done:?}")));
            }
        }
        Ok(())
    }
}
