//! [`Client`]: a server's files, whatever version it speaks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use nfs::v4::Status;

use crate::calls::Caller;
use crate::error::Error;
use crate::file::File;
use crate::options::{Auth, Options, Sys};
use crate::types::{Attributes, Cursor, Entry, FileType, Handle, SetAttributes, Space};
use crate::url::{Url, Version};
use crate::v3::{self, V3};
use crate::v4::V4;

/// The most symbolic links of a path, as in Linux.
const MAX_LINKS: usize = 40;

/// A server's files. Clones are the same session.
#[derive(Clone)]
pub struct Client(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub wire: Wire,
    /// Bytes of written data that are kept until they are stable, of all files.
    pub kept: Cell<usize>,
    version: Version,
    /// Components of the URL's path above the root of `wire`.
    above: Vec<Vec<u8>>,
}

/// A version.
pub(crate) enum Wire {
    V3(V3),
    V4(V4),
}

/// Runs the same expression for both versions.
macro_rules! either {
    ($client:expr, $wire:ident => $do:expr) => {
        match &$client.0.wire {
            Wire::V3($wire) => $do,
            Wire::V4($wire) => $do,
        }
    };
}

impl Client {
    /// Connects to the URL's server: in the version that the URL names, or in the newest that the
    /// server has. With version 3, mounts the export at the beginning of the URL's path.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn connect(url: &Url, options: Options) -> Result<Self, Error> {
        let mut options = Options { transport: url.transport, ..options };
        if url.uid.is_some() || url.gid.is_some() {
            let own = match options.auth {
                Auth::Sys(sys) => sys,
                Auth::None => Sys { uid: 0, gid: 0, gids: Vec::new() },
            };
            options.auth = Auth::Sys(Sys {
                uid: url.uid.unwrap_or(own.uid),
                gid: url.gid.unwrap_or(own.gid),
                // The groups of another user are unknown.
                gids: Vec::new(),
            });
        }
        let versions = match &url.version {
            Some(version) => std::slice::from_ref(version),
            None => &Version::ALL,
        };
        let calls = Caller::connect(&url.host, url.port, options).await?;
        let mut failed = Error::Refused("no version was tried");
        for version in versions {
            let begun = match version.minor() {
                Some(minor) => V4::begin(calls.clone(), minor).await.map(Wire::V4),
                None => V3::mount(calls.clone(), url).await.map(Wire::V3),
            };
            match begun {
                Ok(wire) => {
                    let mounted = match &wire {
                        Wire::V3(v3) => v3.mounted,
                        Wire::V4(_) => 0,
                    };
                    let above = url.components().take(mounted).map(<[u8]>::to_vec).collect();
                    let (version, kept) = (*version, Cell::new(0));
                    return Ok(Client(Rc::new(Inner { wire, kept, version, above })));
                }
                // The server answers, but not in this version.
                Err(error @ (Error::Unserved { .. } | Error::Status(Status::MinorVersMismatch))) => {
                    failed = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// Calls the procedure that does nothing.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn null(&self) -> Result<(), Error> {
        either!(self, wire => wire.null().await)
    }

    /// The names of the server's exports, by MOUNT. A server of version 4 alone reports none.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn exports(url: &Url, options: Options) -> Result<Vec<String>, Error> {
        let options = Options { transport: url.transport, ..options };
        let calls = Caller::connect(&url.host, url.port, options).await?;
        v3::list_exports(&calls, url).await
    }

    /// The version in use.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Host and port of the server.
    pub fn place(&self) -> &str {
        either!(self, wire => wire.place())
    }

    /// The most bytes of one READ and of one WRITE.
    pub fn sizes(&self) -> (u32, u32) {
        either!(self, wire => wire.sizes)
    }

    /// Calls that may be in flight: the slots of version 4's session. Version 3 has no bound; this
    /// number is what servers accept.
    pub fn window(&self) -> u32 {
        match &self.0.wire {
            Wire::V3(_) => 128,
            Wire::V4(v4) => v4.window(),
        }
    }

    /// The lease of version 4, seconds.
    pub fn lease_s(&self) -> Option<u32> {
        match &self.0.wire {
            Wire::V3(_) => None,
            Wire::V4(v4) => Some(v4.lease_s),
        }
    }

    /// Finds the file of the URL's path. Symbolic links in the path are followed, and with `follow`
    /// the last one too.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn find(&self, url: &Url, follow: bool) -> Result<(Handle, Attributes), Error> {
        let root = either!(self, wire => wire.root.clone());
        let attributes = self.attributes(&root).await?;
        let mut names: VecDeque<Vec<u8>> =
            url.components().skip(self.0.above.len()).map(<[u8]>::to_vec).collect();
        let mut found = vec![(root, attributes)];
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            let Some((directory, _)) = found.last() else { break };
            if name == b".." {
                found.pop();
                if found.is_empty() {
                    return Err(Error::Outside);
                }
                continue;
            }
            let next = self.lookup(directory, &name).await?;
            if next.1.kind != FileType::Symlink || (names.is_empty() && !follow) {
                found.push(next);
                continue;
            }
            links += 1;
            let path = self.read_link(&next.0).await?;
            if path.first() == Some(&b'/') || links > MAX_LINKS {
                return Err(Error::Outside);
            }
            let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
            parts.rev().for_each(|part| names.push_front(part.to_vec()));
        }
        found.pop().ok_or(Error::Outside)
    }

    /// The file of a name in a directory.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn lookup(&self, directory: &Handle, name: &[u8]) -> Result<(Handle, Attributes), Error> {
        either!(self, wire => wire.lookup(directory, name).await)
    }

    /// A file's attributes.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn attributes(&self, of: &Handle) -> Result<Attributes, Error> {
        either!(self, wire => wire.attributes(of).await)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn set_attributes(&self, of: &Handle, set: &SetAttributes) -> Result<(), Error> {
        either!(self, wire => wire.set_attributes(of, set).await)
    }

    /// A symbolic link's path.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn read_link(&self, of: &Handle) -> Result<Vec<u8>, Error> {
        either!(self, wire => wire.read_link(of).await)
    }

    /// The next entries of a directory; `None` after the last. A file that is removed meanwhile is
    /// left out.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn list(&self, directory: &Handle, at: &mut Cursor) -> Result<Option<Vec<Entry>>, Error> {
        if at.end {
            return Ok(None);
        }
        let before = at.cookie;
        let listed = either!(self, wire => wire.list(directory, at).await)?;
        if !at.end && at.cookie == before {
            return Err(Error::Nonsense("the listing of a directory does not go on"));
        }
        let mut entries = Vec::with_capacity(listed.len());
        for (name, file) in listed {
            let file = match file {
                Some(file) => Ok(file),
                None => self.lookup(directory, &name).await,
            };
            match file {
                Ok((handle, attributes)) => entries.push(Entry { name, handle, attributes }),
                Err(Error::Status(Status::NoEnt | Status::Stale)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(entries))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn open(&self, file: &Handle, write: bool) -> Result<File, Error> {
        let open = match &self.0.wire {
            Wire::V3(_) => None,
            Wire::V4(v4) => Some(v4.open(file, write).await?),
        };
        Ok(File::new(self.clone(), file.clone(), open))
    }

    /// Makes a regular file and opens it for writing. An existing file gets the attributes of `set`
    /// that CREATE sets, including its size.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn create(&self, directory: &Handle, name: &[u8], set: &SetAttributes) -> Result<File, Error> {
        let (handle, open) = match &self.0.wire {
            Wire::V3(v3) => (v3.create(directory, name, set).await?.0, None),
            Wire::V4(v4) => {
                let (handle, _, open) = v4.create(directory, name, set).await?;
                (handle, Some(open))
            }
        };
        Ok(File::new(self.clone(), handle, open))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn make_directory(
        &self,
        directory: &Handle,
        name: &[u8],
        set: &SetAttributes,
    ) -> Result<(Handle, Attributes), Error> {
        either!(self, wire => wire.make_directory(directory, name, set).await)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn symlink(&self, directory: &Handle, name: &[u8], target: &[u8]) -> Result<(), Error> {
        either!(self, wire => wire.symlink(directory, name, target).await)
    }

    /// Removes a name; a directory must be empty.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn remove(&self, directory: &Handle, name: &[u8], is_directory: bool) -> Result<(), Error> {
        match &self.0.wire {
            Wire::V3(v3) => v3.remove(directory, name, is_directory).await,
            Wire::V4(v4) => v4.remove(directory, name).await,
        }
    }

    /// Renames.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn rename(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<(), Error> {
        either!(self, wire => wire.rename(from, to).await)
    }

    /// The space of the file system of a file.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn space(&self, of: &Handle) -> Result<Space, Error> {
        either!(self, wire => wire.space(of).await)
    }

    /// Ends the session. The server closes files that are still open.
    pub async fn close(&self) {
        if let Wire::V4(v4) = &self.0.wire {
            v4.end().await;
        }
    }
}
