//! A file or a directory of a tree that is read: local, or on an NFS server. A directory of a
//! server that has a name twice is an error.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nfs_client::{Attributes, Client, Cursor, Entry, Error, Handle, Status, Url};

use super::connect::Opened;
use super::copy::{
    Copied, CopyError, Disk, Plan, RemoteError, Sink, Source, Work, copy, open_input, open_output,
};
use super::kept::About;
use super::nfs::{self, OpenFile};
use crate::args::{Connect, Place, Remote};
use crate::progress::Progress;

/// A file or a directory.
pub enum Node {
    Local(PathBuf),
    Remote { client: Client, url: Url, handle: Handle, of: Attributes },
}

pub fn at(url: &Url) -> impl FnOnce(Error) -> CopyError {
    let place = url.to_string();
    move |error| CopyError::Remote { place, error: RemoteError::File(error) }
}

pub fn on(path: &Path) -> impl FnOnce(io::Error) -> CopyError {
    let place = path.display().to_string();
    move |error| CopyError::Io { place, error }
}

/// The error for a place that is no tree.
pub fn no_tree(place: &Place) -> CopyError {
    CopyError::Misfit(format!("{place} has no directories: -r copies local ones and those of NFS"))
}

impl Node {
    /// The file or directory at `place`. Its client, if it has one, joins `clients`.
    pub async fn find(
        place: &Place,
        connect: &Connect,
        clients: &mut Vec<Client>,
    ) -> Result<Self, CopyError> {
        match place {
            Place::File(path) => Ok(Self::Local(path.clone())),
            Place::Remote(Remote::File(url)) => {
                let client = nfs::connect(url, connect).await.map_err(at(url))?;
                clients.push(client.clone());
                let (handle, of) = client.find(url, true).await.map_err(at(url))?;
                Ok(Self::Remote { client, url: url.clone(), handle, of })
            }
            other => Err(no_tree(other)),
        }
    }

    /// Its last name, also of `.` and `..`; the root has none.
    pub fn name(&self) -> Result<Option<Vec<u8>>, CopyError> {
        match self {
            Self::Local(path) => {
                let whole = path.canonicalize().map_err(on(path))?;
                Ok(whole.file_name().map(|name| name.as_bytes().to_vec()))
            }
            Self::Remote { url, .. } => Ok(url.components().last().map(<[u8]>::to_vec)),
        }
    }

    /// The entry of this name; `None` if there is none, or this is no directory.
    pub async fn child(&self, name: &[u8]) -> Result<Option<Self>, CopyError> {
        match self {
            Self::Local(path) => {
                let path = path.join(OsStr::from_bytes(name));
                match path.symlink_metadata() {
                    Ok(_) => Ok(Some(Self::Local(path))),
                    Err(error) if missing(error.kind()) => Ok(None),
                    Err(error) => Err(on(&path)(error)),
                }
            }
            Self::Remote { client, url, handle, .. } => match client.lookup(handle, name).await {
                Ok((handle, of)) => {
                    Ok(Some(Self::Remote { client: client.clone(), url: url.join(name), handle, of }))
                }
                Err(Error::Status(Status::NoEnt | Status::NotDir)) => Ok(None),
                Err(error) => Err(at(url)(error)),
            },
        }
    }

    pub fn place(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Remote { url, .. } => url.to_string(),
        }
    }

    pub fn about(&self) -> Result<About, CopyError> {
        match self {
            Self::Local(path) => Ok(About::from(&path.symlink_metadata().map_err(on(path))?)),
            Self::Remote { of, .. } => Ok(About::from(of)),
        }
    }

    pub async fn open(&self) -> Result<Source<Opened>, CopyError> {
        match self {
            Self::Local(path) => open_input(path),
            Self::Remote { client, url, handle, of } => {
                let opened = OpenFile::known(client, handle, of, url.to_string()).await;
                Ok(Source::Unit(Rc::new(Opened::File(opened.map_err(at(url))?))))
            }
        }
    }

    /// Opens a file to compare another one with it.
    pub async fn open_compared(&self) -> Result<Sink<Opened>, CopyError> {
        match self {
            Self::Local(path) => open_output(path, Work::Check),
            Self::Remote { client, url, handle, of } => {
                let opened = OpenFile::known(client, handle, of, url.to_string()).await;
                Ok(Sink::Unit(Rc::new(Opened::File(opened.map_err(at(url))?))))
            }
        }
    }

    pub async fn target(&self) -> Result<Vec<u8>, CopyError> {
        match self {
            Self::Local(path) => Ok(std::fs::read_link(path).map_err(on(path))?.into_os_string().into_vec()),
            Self::Remote { client, url, handle, .. } => client.read_link(handle).await.map_err(at(url)),
        }
    }

    /// Passes each of its entries to `take`.
    pub async fn children(&self, mut take: impl FnMut(Vec<u8>, Node)) -> Result<(), CopyError> {
        match self {
            Self::Local(path) => {
                for entry in std::fs::read_dir(path).map_err(on(path))? {
                    let entry = entry.map_err(on(path))?;
                    take(entry.file_name().into_vec(), Node::Local(entry.path()));
                }
            }
            Self::Remote { client, url, handle, .. } => {
                let (mut cursor, mut names) = (Cursor::default(), HashSet::new());
                while let Some(page) = client.list(handle, &mut cursor).await.map_err(at(url))? {
                    for Entry { name, handle, attributes } in page {
                        // After a link of this name, a directory of the same name would be written
                        // through the link.
                        if !names.insert(name.clone()) {
                            return Err(at(url)(Error::Nonsense("a directory has a name twice")));
                        }
                        let (client, url) = (client.clone(), url.join(&name));
                        take(name, Node::Remote { client, url, handle, of: attributes });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Copies or compares a file, and closes what is on servers. `plan.sync`: a local file is on its
/// medium then.
pub async fn through(
    source: Source<Opened>,
    sink: Sink<Opened>,
    plan: &Plan,
    progress: &Progress,
) -> Result<Copied, CopyError> {
    let mut files = Vec::new();
    if let Source::Unit(file) = &source {
        files.push(file.clone());
    }
    // Files on a server are made stable in any case; a local file may stay in the page cache.
    let mut sync = plan.sync;
    if let Sink::Unit(file) = &sink {
        files.push(file.clone());
        sync = true;
    }
    let plan = Plan { sync, ..plan.clone() };
    let copied = copy(source, sink, &plan, |bytes| progress.bytes(bytes)).await;
    for file in files {
        let closed = file.close().await;
        if copied.is_ok() {
            closed.map_err(|error| CopyError::Remote { place: file.place(), error })?;
        }
    }
    copied
}

fn missing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether the server of a file cannot be reached, or has not answered for as long as a client
/// waits.
pub fn is_lost(error: &CopyError) -> bool {
    let CopyError::Remote { error: RemoteError::File(error), .. } = error else { return false };
    error.is_unreachable() || matches!(error, Error::Silent { .. })
}
