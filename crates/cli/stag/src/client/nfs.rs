//! From the command line's words to a client of NFS, and what an open file is to a copy.

use std::cell::Cell;
use std::time::Duration;

use nfs_client::{
    Attributes, Auth, Client, Error, File, FileType, Handle, Options, SetAttributes, Status, Sys, Url,
};
use runtime::Chain;

use crate::args::Connect;

/// The mode of a new file, if nothing else is known.
const MODE: u32 = 0o644;

/// What the client is told. Calls are made as the user who runs the command.
pub fn options(args: &Connect) -> Options {
    let gids = rustix::process::getgroups().unwrap_or_default();
    let sys = Sys {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        gids: gids.into_iter().map(rustix::process::Gid::as_raw).collect(),
    };
    let timeout = Duration::from_secs(args.timeout.into());
    Options {
        auth: Auth::Sys(sys),
        connect_timeout: timeout,
        call_timeout: timeout,
        rdma_crc: args.rdma_crc.into(),
        ..Options::default()
    }
}

/// Connects to the server of `url`.
pub async fn connect(url: &Url, args: &Connect) -> Result<Client, Error> {
    Client::connect(url, options(args)).await
}

/// The directory of the last name of `url`, and that name.
///
/// # Errors
/// Those of the server, and [`Status::IsDir`] of the server's root.
pub async fn parent(client: &Client, url: &Url) -> Result<(Handle, Vec<u8>), Error> {
    let mut names: Vec<&[u8]> = url.components().collect();
    let name = names.pop().filter(|name| *name != b"..").ok_or(Error::Status(Status::IsDir))?;
    let above = url.with_path([b"/", names.join(&b'/').as_slice()].concat());
    Ok((client.find(&above, true).await?.0, name.to_vec()))
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    Read,
    /// To be written in part; it is made if it is missing.
    Write,
    /// To be written anew.
    Replace,
}

/// An open file with what a copy asks of it.
pub struct OpenFile {
    place: String,
    client: Client,
    /// The client is this file's own.
    own: bool,
    file: File,
    bytes: u64,
    /// It was empty: what is not written is a hole.
    empty: bool,
    /// Where the last write ended.
    written: Cell<u64>,
}

impl OpenFile {
    /// Connects, and opens the file of `url`. A file replaces none in a directory: with
    /// [`Intent::Replace`] `name` is made in it.
    pub async fn open(url: &Url, args: &Connect, intent: Intent, name: Option<&[u8]>) -> Result<Self, Error> {
        let client = connect(url, args).await?;
        let opened = Self::with(&client, url, intent, name).await;
        match opened {
            Ok(file) => Ok(Self { own: true, ..file }),
            Err(error) => {
                client.close().await;
                Err(error)
            }
        }
    }

    async fn with(client: &Client, url: &Url, intent: Intent, name: Option<&[u8]>) -> Result<Self, Error> {
        let found = match client.find(url, true).await {
            Err(Error::Status(Status::NoEnt)) if intent != Intent::Read => None,
            found => Some(found?),
        };
        match (found, name) {
            (Some((directory, of)), Some(name)) if of.kind == FileType::Directory => {
                Self::create(client, &directory, name, MODE, url.join(name).to_string()).await
            }
            (Some((_, of)), _) if of.kind == FileType::Directory => Err(Error::Status(Status::IsDir)),
            (Some((_, of)), _) if of.kind != FileType::Regular => Err(Error::Status(Status::Inval)),
            (Some((handle, of)), _) => {
                if intent == Intent::Replace {
                    let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
                    client.set_attributes(&handle, &set).await?;
                }
                let file = client.open(&handle, intent != Intent::Read).await?;
                let bytes = if intent == Intent::Replace { 0 } else { of.size };
                Ok(Self::new(client, file, bytes, intent == Intent::Replace, url.to_string()))
            }
            (None, _) => {
                let (directory, name) = parent(client, url).await?;
                Self::create(client, &directory, &name, MODE, url.to_string()).await
            }
        }
    }

    fn new(client: &Client, file: File, bytes: u64, empty: bool, place: String) -> Self {
        Self { place, client: client.clone(), own: false, file, bytes, empty, written: Cell::new(0) }
    }

    /// Opens a file that is known, to be read.
    pub async fn known(
        client: &Client,
        handle: &Handle,
        of: &Attributes,
        place: String,
    ) -> Result<Self, Error> {
        let file = client.open(handle, false).await?;
        Ok(Self::new(client, file, of.size, false, place))
    }

    /// Makes a file, or empties the one that is there.
    pub async fn create(
        client: &Client,
        directory: &Handle,
        name: &[u8],
        mode: u32,
        place: String,
    ) -> Result<Self, Error> {
        let set = SetAttributes { mode: Some(mode), size: Some(0), mtime: None };
        let file = client.create(directory, name, &set).await?;
        Ok(Self::new(client, file, 0, true, place))
    }

    /// Closes the file, and its session if it has one of its own.
    pub async fn close(&self) -> Result<(), Error> {
        let closed = self.file.close().await;
        if self.own {
            self.client.close().await;
        }
        closed
    }

    /// Its URL.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its bytes when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads exactly `len` bytes.
    pub async fn read(&self, at: u64, len: usize) -> Result<Chain, Error> {
        let data = self.file.read(at, len).await?;
        if data.len() < len {
            return Err(Error::Nonsense("the file became shorter while it was read"));
        }
        Ok(data)
    }

    pub async fn write(&self, at: u64, data: Chain) -> Result<(), Error> {
        let end = at + data.len() as u64;
        self.file.write(at, data).await?;
        self.written.set(self.written.get().max(end));
        Ok(())
    }

    /// Whether a range is a hole that is not written.
    pub fn is_hole(&self) -> bool {
        self.empty
    }

    /// Makes it end at `end`, if that is a hole's end.
    pub async fn end(&self, end: u64) -> Result<(), Error> {
        if self.empty && end > self.written.get() { self.file.set_size(end).await } else { Ok(()) }
    }

    /// Waits until the server has made all of it stable.
    pub async fn sync(&self) -> Result<(), Error> {
        self.file.sync().await
    }
}
