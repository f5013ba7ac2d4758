//! NFS version 3 (RFC 1813): mounting, and one call for each operation.

use std::time::Duration;

use nfs::v3::{self, Arguments, Located, Outcome, Results};
use nfs::{mount, v4};
use rpc::bind;
use rpc::xdr::{Opaque, Reader, Xdr};
use runtime::Chain;

use crate::calls::{Answer, Caller};
use crate::error::Error;
use crate::message::Room;
use crate::options::{Options, Transport};
use crate::patience::Patience;
use crate::types::{Attributes, Cursor, Handle, Listed, SetAttributes, Space, Written, entry_name};
use crate::url::Url;

/// The most bytes of names of a READDIRPLUS, and the most of its reply.
const LIST: (u32, u32) = (32 << 10, 256 << 10);
/// The most bytes of the reply with a symbolic link's path.
const LINK: usize = 8 << 10;
/// The most bytes of MOUNT's list of exports.
const EXPORTS: usize = 64 << 10;

/// A mounted export.
pub(crate) struct V3 {
    calls: Caller,
    pub root: Handle,
    /// Number of components of the URL's path that lead to the root.
    pub mounted: usize,
    /// The most bytes of a READ and of a WRITE.
    pub sizes: (u32, u32),
}

/// A reply, and its results.
struct Done(v3::Procedure, Answer);

impl Done {
    fn results(&self) -> Result<Located<Results<'_>>, Error> {
        let Done(procedure, answer) = self;
        if answer.apart() == 0 {
            return Ok(v3::results(*procedure, answer.body())?);
        }
        let mut from = Reader::new(answer.body());
        let value = Results::read(*procedure, &mut from)?;
        let payload = answer.payload_apart(from.position(), value.payload())?.unwrap_or_default();
        Ok(Located { value, payload })
    }
}

/// Takes the value out of the results of a successful call.
macro_rules! ok {
    ($done:expr, $variant:ident) => {
        match $done.results()?.value {
            Results::$variant(Outcome::Ok(value)) => Ok(value),
            _ => Err(Error::Nonsense("the results are of another procedure")),
        }
    };
}

fn name(name: &[u8]) -> Result<v3::Name<'_>, Error> {
    v3::Name::new(name).map_err(|_| Error::Status(v4::Status::NameTooLong))
}

fn place<'a>(directory: &'a Handle, of: &'a [u8]) -> Result<v3::DirOp<'a>, Error> {
    Ok(v3::DirOp { directory: directory.v3(), name: name(of)? })
}

/// Bound on the reply's length of a procedure.
fn room(arguments: &Arguments<'_>) -> Room {
    match arguments {
        Arguments::Read(read) => Room::read(read.count),
        Arguments::ReadDirPlus(list) => Room::results(list.max_count as usize + Room::SMALL.rest),
        Arguments::ReadLink(_) => Room::results(LINK),
        _ => Room::SMALL,
    }
}

impl V3 {
    /// Mounts the longest part of the URL's path that the server exports.
    pub async fn mount(calls: Caller, url: &Url) -> Result<Self, Error> {
        null(&calls).await?;
        let mounts = mount_service(&calls, url).await?;
        let components: Vec<&[u8]> = url.components().collect();
        // The directory above the last name first, so that the name can be removed or made in it.
        // The last name itself may be an export, or else one of its directories may be.
        let whole = components.len();
        let above = whole.saturating_sub(1);
        let mut failed = None;
        let mut mounted = None;
        for length in [above, whole].into_iter().chain((0..above).rev()) {
            match mnt(&mounts, &components[..length]).await {
                Ok(root) => {
                    mounted = Some((root, length));
                    break;
                }
                Err(Error::Mount(status)) if length == whole => failed = Some(status),
                Err(Error::Mount(status)) => failed = failed.or(Some(status)),
                Err(error) => return Err(error),
            }
        }
        let Some((root, mounted)) = mounted else {
            let reason = Error::Mount(failed.unwrap_or(mount::Status::NoEnt)).to_string();
            let exports = exports(&mounts).await.unwrap_or_default();
            return Err(Error::NotExported { reason, exports });
        };
        let mut this = V3 { calls, root, mounted, sizes: (0, 0) };
        let info = this.call(Arguments::FsInfo(this.root.v3()), Chain::new()).await?;
        let info = ok!(info, FsInfo)?;
        let most = (this.calls.options().max_reply as u32).saturating_sub(1 << 10).max(512);
        this.sizes = (info.read_max.clamp(512, most), info.write_max.clamp(512, most));
        Ok(this)
    }

    /// Calls, and again while the server answers JUKEBOX. An error of NFS is an error.
    async fn call(&self, arguments: Arguments<'_>, payload: Chain) -> Result<Done, Error> {
        let procedure = arguments.procedure();
        let mut patience = Patience::new(self.calls.options().give_up);
        loop {
            let number = (v3::PROGRAM, v3::VERSION, procedure.code());
            let write = |to: &mut rpc::xdr::Writer<'_>| arguments.write(to);
            let answer = self.calls.call_for(number, write, payload.clone(), room(&arguments)).await?;
            match Reader::new(answer.body()).u32()? {
                0 => return Ok(Done(procedure, answer)),
                code => {
                    let status = status(code);
                    if status != v4::Status::Delay || !patience.wait(Duration::from_secs(1)).await {
                        return Err(Error::Status(status));
                    }
                }
            }
        }
    }

    async fn done(&self, arguments: Arguments<'_>) -> Result<(), Error> {
        self.call(arguments, Chain::new()).await.map(drop)
    }

    pub async fn null(&self) -> Result<(), Error> {
        null(&self.calls).await
    }

    pub async fn attributes(&self, of: &Handle) -> Result<Attributes, Error> {
        let done = self.call(Arguments::GetAttr(of.v3()), Chain::new()).await?;
        ok!(done, GetAttr).map(Into::into)
    }

    pub async fn set_attributes(&self, of: &Handle, set: &SetAttributes) -> Result<(), Error> {
        let what = v3::SetAttr { object: of.v3(), attributes: set.v3(), guard: None };
        self.done(Arguments::SetAttr(what)).await
    }

    pub async fn lookup(&self, directory: &Handle, of: &[u8]) -> Result<(Handle, Attributes), Error> {
        let done = self.call(Arguments::Lookup(place(directory, of)?), Chain::new()).await?;
        let found = ok!(done, Lookup)?;
        let handle = Handle::new(found.object.bytes());
        let attributes = found.attributes.map(Into::into);
        self.completed(handle, attributes).await
    }

    async fn completed(
        &self,
        handle: Handle,
        attributes: Option<Attributes>,
    ) -> Result<(Handle, Attributes), Error> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle).await?,
        };
        Ok((handle, attributes))
    }

    pub async fn read_link(&self, of: &Handle) -> Result<Vec<u8>, Error> {
        let done = self.call(Arguments::ReadLink(of.v3()), Chain::new()).await?;
        ok!(done, ReadLink).map(|link| link.path.bytes().to_vec())
    }

    pub async fn list(&self, directory: &Handle, at: &mut Cursor) -> Result<Vec<Listed>, Error> {
        let what = v3::ReadDirPlus {
            directory: directory.v3(),
            cookie: at.cookie,
            verifier: at.verifier,
            dir_count: LIST.0,
            max_count: LIST.1,
        };
        let done = self.call(Arguments::ReadDirPlus(what), Chain::new()).await?;
        let page = ok!(done, ReadDirPlus)?;
        let mut listed = Vec::new();
        for entry in page.entries.iter() {
            at.cookie = entry.cookie;
            let Some(name) = entry_name(entry.name.bytes())? else { continue };
            let file = entry.handle.zip(entry.attributes);
            listed.push((name, file.map(|(handle, of)| (Handle::new(handle.bytes()), of.into()))));
        }
        (at.verifier, at.end) = (page.verifier, page.eof);
        Ok(listed)
    }

    /// The new object, which a server may leave out of its reply.
    async fn created(
        &self,
        directory: &Handle,
        of: &[u8],
        arguments: Arguments<'_>,
    ) -> Result<(Handle, Attributes), Error> {
        let done = self.call(arguments, Chain::new()).await?;
        let created = match done.results()?.value {
            Results::Create(Outcome::Ok(created))
            | Results::MkDir(Outcome::Ok(created))
            | Results::Symlink(Outcome::Ok(created)) => created,
            _ => return Err(Error::Nonsense("the results are of another procedure")),
        };
        match created.object {
            Some(handle) => {
                self.completed(Handle::new(handle.bytes()), created.attributes.map(Into::into)).await
            }
            None => self.lookup(directory, of).await,
        }
    }

    pub async fn create(
        &self,
        directory: &Handle,
        of: &[u8],
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes), Error> {
        let what = v3::Create { place: place(directory, of)?, how: v3::CreateHow::Unchecked(set.v3()) };
        self.created(directory, of, Arguments::Create(what)).await
    }

    pub async fn make_directory(
        &self,
        directory: &Handle,
        of: &[u8],
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes), Error> {
        let what = v3::MkDir { place: place(directory, of)?, attributes: set.v3() };
        self.created(directory, of, Arguments::MkDir(what)).await
    }

    pub async fn symlink(&self, directory: &Handle, of: &[u8], target: &[u8]) -> Result<(), Error> {
        let path = Opaque::new(target).map_err(|_| Error::Status(v4::Status::NameTooLong))?;
        let attributes = v3::SetAttributes { mode: Some(0o777), ..v3::SetAttributes::default() };
        let what = v3::Symlink { place: place(directory, of)?, attributes, path };
        self.done(Arguments::Symlink(what)).await
    }

    pub async fn remove(&self, directory: &Handle, of: &[u8], is_directory: bool) -> Result<(), Error> {
        let place = place(directory, of)?;
        let what = if is_directory { Arguments::RmDir(place) } else { Arguments::Remove(place) };
        self.done(what).await
    }

    pub async fn rename(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<(), Error> {
        let what = v3::Rename { from: place(from.0, from.1)?, to: place(to.0, to.1)? };
        self.done(Arguments::Rename(what)).await
    }

    pub fn place(&self) -> &str {
        self.calls.place()
    }

    pub async fn space(&self, of: &Handle) -> Result<Space, Error> {
        let done = self.call(Arguments::FsStat(of.v3()), Chain::new()).await?;
        ok!(done, FsStat).map(|of| Space { total: of.total_bytes, available: of.available_bytes })
    }

    /// Reads: the data, and whether it reaches the end.
    pub async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<(Chain, bool), Error> {
        let what = v3::Read { file: file.v3(), offset, count };
        let done = self.call(Arguments::Read(what), Chain::new()).await?;
        let found = done.results()?;
        let Results::Read(Outcome::Ok(read)) = found.value else {
            return Err(Error::Nonsense("the results are of another procedure"));
        };
        if found.payload.len() > count as usize {
            return Err(Error::Nonsense("more data than were asked for"));
        }
        let (payload, eof) = (found.payload.clone(), read.eof);
        Ok((done.1.into_payload(payload), eof))
    }

    pub async fn write(
        &self,
        file: &Handle,
        offset: u64,
        data: Chain,
        stable: bool,
    ) -> Result<Written, Error> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let stable = if stable { v3::Stable::FileSync } else { v3::Stable::Unstable };
        let what = v3::Write { file: file.v3(), offset, count: length, stable, length };
        let done = self.call(Arguments::Write(what), data).await?;
        let written = ok!(done, Write)?;
        let stable = written.committed != v3::Stable::Unstable;
        Ok(Written { count: written.count, stable, verifier: written.verifier })
    }

    pub async fn commit(&self, file: &Handle) -> Result<[u8; 8], Error> {
        let what = v3::Commit { file: file.v3(), offset: 0, count: 0 };
        let done = self.call(Arguments::Commit(what), Chain::new()).await?;
        ok!(done, Commit).map(|done| done.verifier)
    }
}

async fn null(calls: &Caller) -> Result<(), Error> {
    let number = (v3::PROGRAM, v3::VERSION, v3::Procedure::Null.code());
    calls.call(number, |_| {}, Chain::new()).await.map(drop)
}

/// Version 4 has the numbers of version 3, and more.
fn status(code: u32) -> v4::Status {
    v4::Status::from_code(code).unwrap_or(v4::Status::Io)
}

/// A connection to the MOUNT service: `calls` itself, or one to the port that the server's
/// portmapper gives.
async fn mount_service(calls: &Caller, url: &Url) -> Result<Caller, Error> {
    let null = (mount::PROGRAM, mount::VERSION, mount::Procedure::Null.code());
    match calls.call(null, |_| {}, Chain::new()).await {
        Err(Error::Unserved { .. } | Error::Refused(_)) => {}
        answer => return answer.map(|_| calls.clone()),
    }
    let options = Options { transport: Transport::Tcp, ..calls.options().clone() };
    let mapper = Caller::connect(&url.host, bind::PORT, options.clone()).await?;
    let get = (bind::PROGRAM, bind::v2::VERSION, bind::v2::Procedure::GetPort.code());
    let wanted =
        bind::Mapping { program: mount::PROGRAM, version: mount::VERSION, protocol: bind::TCP, port: 0 };
    let answer = mapper.call(get, |to| wanted.write(to), Chain::new()).await?;
    let port = Reader::new(answer.body()).u32()?;
    match u16::try_from(port).ok().filter(|port| *port != 0) {
        Some(port) => Caller::connect(&url.host, port, options).await,
        None => Err(Error::Unserved { program: mount::PROGRAM, version: mount::VERSION, versions: None }),
    }
}

/// The handle of a path, by MOUNT.
async fn mnt(mounts: &Caller, components: &[&[u8]]) -> Result<Handle, Error> {
    let path = [&b"/"[..], &components.join(&b'/')].concat();
    let path = Opaque::new(&path).map_err(|_| Error::Mount(mount::Status::NameTooLong))?;
    let procedure = mount::Procedure::Mnt;
    let number = (mount::PROGRAM, mount::VERSION, procedure.code());
    let answer = mounts.call(number, |to| mount::Arguments::Mnt(path).write(to), Chain::new()).await?;
    match mount::Results::read(procedure, &mut Reader::new(answer.body()))? {
        mount::Results::Mnt(Outcome::Ok(mounted)) => Ok(Handle::new(mounted.handle.bytes())),
        mount::Results::Mnt(Outcome::Err(status, ())) => Err(Error::Mount(status)),
        _ => Err(Error::Nonsense("the results are of another procedure")),
    }
}

/// Paths that the server exports.
async fn exports(mounts: &Caller) -> Result<Vec<String>, Error> {
    let procedure = mount::Procedure::Export;
    let number = (mount::PROGRAM, mount::VERSION, procedure.code());
    let answer = mounts.call_for(number, |_| {}, Chain::new(), Room::results(EXPORTS)).await?;
    match mount::Results::read(procedure, &mut Reader::new(answer.body()))? {
        mount::Results::Export(exports) => Ok(exports
            .iter()
            .map(|one| String::from_utf8_lossy(one.directory.bytes()).into_owned())
            .collect()),
        _ => Err(Error::Nonsense("the results are of another procedure")),
    }
}

/// The names of the server's exports, by MOUNT.
pub(crate) async fn list_exports(calls: &Caller, url: &Url) -> Result<Vec<String>, Error> {
    exports(&mount_service(calls, url).await?).await
}
