//! NFS version 4.1 and 4.2 (RFC 8881, RFC 7862): one COMPOUND for each operation.

mod opens;
mod session;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nfs::v4::{
    self, Arguments, Bitmap, Claim, Close, Commit, Create, CreateHow, CreateType, Fattr, Located, Name,
    Outcome, Read, ReadDir, Rename, Results, SetAttr, Stable, Stateid, Status, Verifier, Write, attribute,
};
use runtime::Chain;

use crate::calls::Caller;
use crate::error::Error;
use crate::types::{Attributes, Cursor, Handle, Listed, SetAttributes, Space, WANTED, Written, entry_name};
pub(crate) use opens::Open;
use session::{Done, Session};

/// The most bytes of names of a READDIR, and the most of its reply.
const LIST: (u32, u32) = (32 << 10, 256 << 10);

/// A server.
pub(crate) struct V4 {
    session: Rc<Session>,
    pub root: Handle,
    /// The most bytes of a READ and of a WRITE.
    pub sizes: (u32, u32),
    /// The lease, seconds.
    pub lease_s: u32,
    /// The number of the last open.
    opens: Cell<u64>,
}

fn name(name: &[u8]) -> Name<'_> {
    Name::new(name).unwrap_or(Name::EMPTY)
}

/// The error of results that belong to other operations.
const OTHER: Error = Error::Nonsense("the results are of other operations");

/// The attributes in the last result.
fn attributes<'a>(results: &'a [Located<Results<'a>>]) -> Result<v4::Attributes<'a>, Error> {
    match results.last() {
        Some(Located { value: Results::GetAttr(Outcome::Ok(found)), .. }) => {
            found.attributes().map_err(|_| Error::Nonsense("attributes that were not asked for"))
        }
        _ => Err(OTHER),
    }
}

/// The file of results that end with those of GETFH and GETATTR.
fn found(done: &Done) -> Result<(Handle, Attributes), Error> {
    let results = done.results()?;
    let handle = results.iter().rev().find_map(|one| match &one.value {
        Results::GetFh(Outcome::Ok(handle)) => Some(Handle::new(handle.bytes())),
        _ => None,
    });
    Ok((handle.ok_or(OTHER)?, Attributes::try_from(&attributes(&results)?)?))
}

impl V4 {
    /// Makes a session of a minor version.
    pub async fn begin(calls: Caller, minor: u32) -> Result<Self, Error> {
        let session = Session::begin(calls, minor).await?;
        let of_server = Bitmap::of(&[attribute::LEASE_TIME, attribute::MAXREAD, attribute::MAXWRITE]);
        let root = [Arguments::PutRootFh(()), Arguments::GetFh(()), Arguments::GetAttr(of_server)];
        let done = session.run(&root, Chain::new(), false).await?;
        let results = done.results()?;
        let [_, Located { value: Results::GetFh(Outcome::Ok(handle)), .. }, _] = &results[..] else {
            return Err(OTHER);
        };
        let root = Handle::new(handle.bytes());
        let limits = attributes(&results)?;
        let lease_s = limits.lease_time_s.unwrap_or(30);
        session.set_lease(Duration::from_secs(lease_s.into()));
        let most = session.sizes();
        let limit = |most: u32, says: Option<u64>| {
            says.filter(|says| *says >= 512)
                .map_or(most, |says| most.min(says.try_into().unwrap_or(u32::MAX)))
        };
        let sizes = (limit(most.0, limits.max_read), limit(most.1, limits.max_write));
        Ok(V4 { session, root, sizes, lease_s, opens: Cell::new(0) })
    }

    /// Calls that may be in flight.
    pub fn window(&self) -> u32 {
        self.session.slots()
    }

    async fn run(&self, operations: &[Arguments<'_>], keep: bool) -> Result<Done, Error> {
        self.session.run(operations, Chain::new(), keep).await
    }

    pub async fn null(&self) -> Result<(), Error> {
        self.session.calls().call((v4::PROGRAM, v4::VERSION, 0), |_| {}, Chain::new()).await.map(drop)
    }

    pub async fn attributes(&self, of: &Handle) -> Result<Attributes, Error> {
        let done = self.run(&[Arguments::PutFh(of.v4()), Arguments::GetAttr(WANTED)], false).await?;
        Attributes::try_from(&attributes(&done.results()?)?)
    }

    pub async fn set_attributes(&self, of: &Handle, set: &SetAttributes) -> Result<(), Error> {
        let set = set.v4();
        let what = SetAttr { stateid: Stateid::ANONYMOUS, attributes: Fattr::of(&set) };
        self.run(&[Arguments::PutFh(of.v4()), Arguments::SetAttr(what)], true).await.map(drop)
    }

    pub async fn lookup(&self, directory: &Handle, of: &[u8]) -> Result<(Handle, Attributes), Error> {
        let what = [
            Arguments::PutFh(directory.v4()),
            Arguments::Lookup(name(of)),
            Arguments::GetFh(()),
            Arguments::GetAttr(WANTED),
        ];
        found(&self.run(&what, false).await?)
    }

    pub async fn read_link(&self, of: &Handle) -> Result<Vec<u8>, Error> {
        let done = self.run(&[Arguments::PutFh(of.v4()), Arguments::ReadLink(())], false).await?;
        match done.results()?.last() {
            Some(Located { value: Results::ReadLink(Outcome::Ok(path)), .. }) => Ok(path.bytes().to_vec()),
            _ => Err(OTHER),
        }
    }

    pub async fn list(&self, directory: &Handle, at: &mut Cursor) -> Result<Vec<Listed>, Error> {
        let what = ReadDir {
            cookie: at.cookie,
            verifier: Verifier(at.verifier),
            dir_count: LIST.0,
            max_count: LIST.1.min(self.sizes.0),
            requested: WANTED.with(attribute::FILEHANDLE).with(attribute::RDATTR_ERROR),
        };
        let done = self.run(&[Arguments::PutFh(directory.v4()), Arguments::ReadDir(what)], false).await?;
        let results = done.results()?;
        let Some(Located { value: Results::ReadDir(Outcome::Ok(page)), .. }) = results.last() else {
            return Err(OTHER);
        };
        let mut listed = Vec::new();
        for entry in page.entries.iter() {
            at.cookie = entry.cookie;
            let Some(name) = entry_name(entry.name.bytes())? else { continue };
            let of = entry.attributes.attributes().ok();
            let file = of.and_then(|of| Some((Handle::new(of.filehandle?.bytes()), (&of).try_into().ok()?)));
            listed.push((name, file));
        }
        (at.verifier, at.end) = (page.verifier.0, page.eof);
        Ok(listed)
    }

    /// Makes a regular file, or truncates an existing one, and opens it.
    pub async fn create(
        &self,
        directory: &Handle,
        of: &[u8],
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes, Rc<Open>), Error> {
        let set = set.v4();
        // The handle is known only once the file exists.
        let making = self.new_open(directory.clone(), true);
        let how = CreateHow::Unchecked(Fattr::of(&set));
        let what = [
            Arguments::PutFh(directory.v4()),
            making.arguments(Claim::Null(name(of)), Some(how)),
            Arguments::GetFh(()),
            Arguments::GetAttr(WANTED),
        ];
        let done = self.run(&what, true).await?;
        let (handle, attributes) = found(&done)?;
        let open = Rc::new(making.of(handle.clone()));
        self.opened(&open, &done).await?;
        Ok((handle, attributes, open))
    }

    fn new_open(&self, file: Handle, write: bool) -> Open {
        self.opens.set(self.opens.get() + 1);
        Open::new(file, self.opens.get(), write)
    }

    /// Opens a file.
    pub async fn open(&self, file: &Handle, write: bool) -> Result<Rc<Open>, Error> {
        let open = Rc::new(self.new_open(file.clone(), write));
        let done = self.run(&open.open(), true).await?;
        self.opened(&open, &done).await?;
        Ok(open)
    }

    /// Records an open. Returns a delegation, which this client never requests.
    async fn opened(&self, open: &Rc<Open>, done: &Done) -> Result<(), Error> {
        let delegation = open.take(done)?;
        self.session.note(open);
        if let Some(delegation) = delegation {
            let what = [Arguments::PutFh(open.file.v4()), Arguments::DelegReturn(delegation)];
            self.run(&what, true).await?;
        }
        Ok(())
    }

    pub async fn close(&self, open: &Open) -> Result<(), Error> {
        let close = Close { seqid: 0, stateid: open.stateid() };
        match self.run(&[Arguments::PutFh(open.file.v4()), Arguments::Close(close)], true).await {
            Err(Error::Status(status)) if is_lost(status) => Ok(()),
            ended => ended.map(drop),
        }
    }

    pub async fn make_directory(
        &self,
        directory: &Handle,
        of: &[u8],
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes), Error> {
        self.make(directory, of, CreateType::Directory(()), set).await
    }

    pub async fn symlink(&self, directory: &Handle, of: &[u8], target: &[u8]) -> Result<(), Error> {
        let kind = CreateType::Symlink(name(target));
        self.make(directory, of, kind, &SetAttributes::default()).await.map(drop)
    }

    async fn make(
        &self,
        directory: &Handle,
        of: &[u8],
        kind: CreateType<'_>,
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes), Error> {
        let set = set.v4();
        let what = [
            Arguments::PutFh(directory.v4()),
            Arguments::Create(Create { kind, name: name(of), attributes: Fattr::of(&set) }),
            Arguments::GetFh(()),
            Arguments::GetAttr(WANTED),
        ];
        found(&self.run(&what, true).await?)
    }

    pub async fn remove(&self, directory: &Handle, of: &[u8]) -> Result<(), Error> {
        let what = [Arguments::PutFh(directory.v4()), Arguments::Remove(name(of))];
        self.run(&what, true).await.map(drop)
    }

    pub async fn rename(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<(), Error> {
        let what = [
            Arguments::PutFh(from.0.v4()),
            Arguments::SaveFh(()),
            Arguments::PutFh(to.0.v4()),
            Arguments::Rename(Rename { from: name(from.1), to: name(to.1) }),
        ];
        self.run(&what, true).await.map(drop)
    }

    pub async fn space(&self, of: &Handle) -> Result<Space, Error> {
        let set = Bitmap::of(&[attribute::SPACE_TOTAL, attribute::SPACE_AVAIL]);
        let done = self.run(&[Arguments::PutFh(of.v4()), Arguments::GetAttr(set)], false).await?;
        let results = done.results()?;
        let of = attributes(&results)?;
        Ok(Space { total: of.space_total.unwrap_or(0), available: of.space_avail.unwrap_or(0) })
    }

    /// Runs an operation on an open file, and again if the server has forgotten the open.
    async fn on_open(
        &self,
        open: &Rc<Open>,
        operation: impl Fn(Stateid) -> Arguments<'static>,
        payload: Chain,
    ) -> Result<Done, Error> {
        let mut opened = false;
        loop {
            let stateid = open.stateid();
            let what = [Arguments::PutFh(open.file.v4()), operation(stateid)];
            match self.session.run(&what, payload.clone(), false).await {
                Err(Error::Status(status)) if is_lost(status) && open.stateid() != stateid => {}
                Err(Error::Status(status)) if is_lost(status) && !opened => {
                    opened = true;
                    let done = self.run(&open.open(), true).await?;
                    self.opened(open, &done).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Reads: the data, and whether it reaches the end.
    pub async fn read(&self, open: &Rc<Open>, offset: u64, count: u32) -> Result<(Chain, bool), Error> {
        let read = |stateid| Arguments::Read(Read { stateid, offset, count });
        let done = self.on_open(open, read, Chain::new()).await?;
        let (payload, eof) = match done.results()?.last() {
            Some(Located { value: Results::Read(Outcome::Ok(read)), payload }) => (payload.clone(), read.eof),
            _ => return Err(OTHER),
        };
        if payload.len() > count as usize {
            return Err(Error::Nonsense("more data than were asked for"));
        }
        Ok((done.into_payload(payload), eof))
    }

    pub async fn write(
        &self,
        open: &Rc<Open>,
        offset: u64,
        data: Chain,
        stable: bool,
    ) -> Result<Written, Error> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let stable = if stable { Stable::FileSync } else { Stable::Unstable };
        let write = |stateid| Arguments::Write(Write { stateid, offset, stable, length });
        let done = self.on_open(open, write, data).await?;
        match done.results()?.last() {
            Some(Located { value: Results::Write(Outcome::Ok(written)), .. }) => Ok(Written {
                count: written.count,
                stable: written.committed != Stable::Unstable,
                verifier: written.verifier.0,
            }),
            _ => Err(OTHER),
        }
    }

    pub async fn commit(&self, open: &Open) -> Result<[u8; 8], Error> {
        let commit = Arguments::Commit(Commit { offset: 0, count: 0 });
        let done = self.run(&[Arguments::PutFh(open.file.v4()), commit], false).await?;
        match done.results()?.last() {
            Some(Located { value: Results::Commit(Outcome::Ok(verifier)), .. }) => Ok(verifier.0),
            _ => Err(OTHER),
        }
    }

    /// Ends the session.
    pub async fn end(&self) {
        self.session.end().await;
    }

    pub fn place(&self) -> &str {
        self.session.calls().place()
    }
}

/// The server does not know a stateid, since it restarted or the lease expired.
fn is_lost(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateid
            | Status::StaleStateid
            | Status::OldStateid
            | Status::Expired
            | Status::AdminRevoked
    )
}
