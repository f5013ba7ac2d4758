//! `stag cp -r` and `stag rm`: whole trees, local ones and those of NFS servers. Many files are under way at once. A server's
//! names and links never lead out of the directory that is copied to.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::rc::Rc;

use nfs_client::{Attributes, Client, Cursor, Entry, Error, FileType, Handle, SetAttributes, Status, Url};

use super::connect::Opened;
use super::copy::{CopyError, Disk, Plan, RemoteError, Sink, Source, copy, open_input, open_output};
use super::nfs::{self, OpenFile};
use crate::args::{Connect, Place, Remote, Rm, Transfer};
use crate::progress::Progress;
use crate::work::{self, Jobs};

/// A file or directory to copy.
enum Node {
    Local(PathBuf),
    Remote { client: Client, url: Url, handle: Handle, of: Attributes },
}

/// Where it goes to: a name in a directory.
enum Spot {
    Local(PathBuf),
    Remote { client: Client, url: Url, directory: Handle, name: Vec<u8> },
}

/// A directory that is copied to.
enum Inside {
    Local(PathBuf),
    Remote { client: Client, url: Url, directory: Handle },
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

fn at(url: &Url) -> impl FnOnce(Error) -> CopyError {
    let place = url.to_string();
    move |error| CopyError::Remote { place, error: RemoteError::File(error) }
}

fn on(path: &std::path::Path) -> impl FnOnce(io::Error) -> CopyError {
    let place = path.display().to_string();
    move |error| CopyError::Io { place, error }
}

impl Node {
    fn place(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Remote { url, .. } => url.to_string(),
        }
    }

    /// Its kind, and its permissions.
    fn about(&self) -> Result<(Kind, u32), CopyError> {
        match self {
            Self::Local(path) => {
                let about = path.symlink_metadata().map_err(on(path))?;
                let kind = match about.file_type() {
                    kind if kind.is_file() => Kind::File,
                    kind if kind.is_dir() => Kind::Directory,
                    kind if kind.is_symlink() => Kind::Symlink,
                    _ => Kind::Other,
                };
                Ok((kind, about.permissions().mode() & 0o7777))
            }
            Self::Remote { of, .. } => {
                let kind = match of.kind {
                    FileType::Regular => Kind::File,
                    FileType::Directory => Kind::Directory,
                    FileType::Symlink => Kind::Symlink,
                    _ => Kind::Other,
                };
                Ok((kind, of.mode))
            }
        }
    }

    async fn open(&self) -> Result<Source<Opened>, CopyError> {
        match self {
            Self::Local(path) => open_input(path),
            Self::Remote { client, url, handle, of } => {
                let opened = OpenFile::known(client, handle, of, url.to_string()).await;
                Ok(Source::Unit(Rc::new(Opened::File(opened.map_err(at(url))?))))
            }
        }
    }

    async fn target(&self) -> Result<Vec<u8>, CopyError> {
        match self {
            Self::Local(path) => Ok(std::fs::read_link(path).map_err(on(path))?.into_os_string().into_vec()),
            Self::Remote { client, url, handle, .. } => client.read_link(handle).await.map_err(at(url)),
        }
    }

    /// Gives each of its entries to `take`.
    async fn children(&self, mut take: impl FnMut(Vec<u8>, Node)) -> Result<(), CopyError> {
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
                        // A link and a directory of one name would lead elsewhere.
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

impl Inside {
    fn spot(&self, name: Vec<u8>) -> Spot {
        match self {
            Self::Local(path) => Spot::Local(path.join(OsStr::from_bytes(&name))),
            Self::Remote { client, url, directory } => Spot::Remote {
                client: client.clone(),
                url: url.join(&name),
                directory: directory.clone(),
                name,
            },
        }
    }
}

impl Spot {
    /// Makes a directory here, or takes the one that is there.
    async fn directory(self, mode: u32) -> Result<Inside, CopyError> {
        match self {
            Self::Local(path) => {
                // The owner has to be able to fill it.
                match std::fs::DirBuilder::new().mode(mode | 0o700).create(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        let about = path.symlink_metadata().map_err(on(&path))?;
                        if !about.is_dir() {
                            return Err(on(&path)(io::ErrorKind::NotADirectory.into()));
                        }
                    }
                    made => made.map_err(on(&path))?,
                }
                Ok(Inside::Local(path))
            }
            Self::Remote { client, url, directory, name } => {
                let set = SetAttributes { mode: Some(mode | 0o700), ..SetAttributes::default() };
                let made = match client.make_directory(&directory, &name, &set).await {
                    Err(Error::Status(Status::Exist)) => client.lookup(&directory, &name).await,
                    made => made,
                };
                let (directory, of) = made.map_err(at(&url))?;
                if of.kind != FileType::Directory {
                    return Err(at(&url)(Error::Status(Status::NotDir)));
                }
                Ok(Inside::Remote { client, url, directory })
            }
        }
    }

    /// Opens a file here that replaces the one that is there.
    async fn create(&self, mode: u32) -> Result<Sink<Opened>, CopyError> {
        match self {
            Self::Local(path) => {
                if path.is_symlink() {
                    std::fs::remove_file(path).map_err(on(path))?;
                }
                let new = !path.exists();
                let sink = open_output(path)?;
                if new {
                    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(on(path))?;
                }
                Ok(sink)
            }
            Self::Remote { client, url, directory, name } => {
                let made = OpenFile::create(client, directory, name, mode, url.to_string()).await;
                Ok(Sink::Unit(Rc::new(Opened::File(made.map_err(at(url))?))))
            }
        }
    }

    /// Makes a symbolic link here, in place of another one.
    async fn link(&self, target: &[u8]) -> Result<(), CopyError> {
        match self {
            Self::Local(path) => {
                if path.is_symlink() {
                    std::fs::remove_file(path).map_err(on(path))?;
                }
                symlink(OsStr::from_bytes(target), path).map_err(on(path))
            }
            Self::Remote { client, url, directory, name } => {
                let made = match client.symlink(directory, name, target).await {
                    Err(Error::Status(Status::Exist)) => {
                        client.remove(directory, name, false).await.map_err(at(url))?;
                        client.symlink(directory, name, target).await
                    }
                    made => made,
                };
                made.map_err(at(url))
            }
        }
    }
}

/// Keeps the first error of many jobs.
#[derive(Default)]
struct First(RefCell<Option<CopyError>>);

impl First {
    fn note<J: 'static>(&self, outcome: Result<(), CopyError>, jobs: &Jobs<J>) {
        if let Err(error) = outcome {
            self.0.borrow_mut().get_or_insert(error);
            jobs.stop();
        }
    }

    fn outcome(&self) -> Result<(), CopyError> {
        self.0.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// Copies a directory or file with all below it.
pub async fn copy_tree(
    from: &Place,
    to: &Place,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
) -> Result<(), CopyError> {
    let no_tree = |place: &Place| {
        CopyError::Misfit(format!("{place} has no directories: -r copies local ones and those of NFS"))
    };
    let mut clients = Vec::new();
    let node = match from {
        Place::File(path) => Node::Local(path.clone()),
        Place::Remote(Remote::File(url)) => {
            let client = nfs::connect(url, connect).await.map_err(at(url))?;
            clients.push(client.clone());
            let (handle, of) = client.find(url, true).await.map_err(at(url))?;
            Node::Remote { client, url: url.clone(), handle, of }
        }
        other => return Err(no_tree(other)),
    };
    let name = match &node {
        Node::Local(path) => {
            // Also of `.` and `..`.
            let whole = path.canonicalize().map_err(on(path))?;
            whole.file_name().map(|name| name.as_bytes().to_vec())
        }
        Node::Remote { url, .. } => url.components().last().map(<[u8]>::to_vec),
    };
    let spot = match to {
        Place::File(path) => match (path.is_dir(), name) {
            (true, Some(name)) => Spot::Local(path.join(OsStr::from_bytes(&name))),
            _ => Spot::Local(path.clone()),
        },
        Place::Remote(Remote::File(url)) => {
            let client = nfs::connect(url, connect).await.map_err(at(url))?;
            clients.push(client.clone());
            match (client.find(url, true).await, name) {
                (Ok((directory, of)), Some(name)) if of.kind == FileType::Directory => {
                    Spot::Remote { client, url: url.join(&name), directory, name }
                }
                (Ok(_) | Err(Error::Status(Status::NoEnt)), _) => {
                    let (directory, name) = nfs::parent(&client, url).await.map_err(at(url))?;
                    Spot::Remote { client, url: url.clone(), directory, name }
                }
                (Err(error), _) => return Err(at(url)(error)),
            }
        }
        other => return Err(no_tree(other)),
    };
    let progress = Rc::new(Progress::new(transfer.quiet));
    let first = Rc::new(First::default());
    let (shown, failed) = (progress.clone(), first.clone());
    let (plan, mask) = (Rc::new(plan.clone()), !umask() & 0o777);
    work::run(vec![(node, spot)], transfer.depth, move |(node, spot), jobs| {
        let (progress, first, plan) = (shown.clone(), failed.clone(), plan.clone());
        async move { first.note(one(&node, spot, mask, &plan, &progress, &jobs).await, &jobs) }
    })
    .await;
    for client in clients {
        client.close().await;
    }
    let outcome = first.outcome();
    progress.finish(outcome.is_err());
    outcome
}

/// The bits of a mode that new files of this process do not get.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o022)
}

/// Copies one file or link, or makes one directory and begins its entries. New files get the bits of `mask` of the mode: no
/// server makes a local program run as its owner.
async fn one(
    node: &Node,
    spot: Spot,
    mask: u32,
    plan: &Plan,
    progress: &Progress,
    jobs: &Jobs<(Node, Spot)>,
) -> Result<(), CopyError> {
    let (kind, mode) = node.about()?;
    let mode = mode & mask;
    match kind {
        Kind::Directory => {
            let inside = spot.directory(mode).await?;
            node.children(|name, child| jobs.add((child, inside.spot(name)))).await?;
            return Ok(());
        }
        Kind::Symlink => spot.link(&node.target().await?).await?,
        Kind::File => {
            let (source, sink) = (node.open().await?, spot.create(mode).await?);
            let mut files = Vec::new();
            if let Source::Unit(file) = &source {
                files.push(file.clone());
            }
            // What is written here is the page cache's; what is written to a server is stable.
            let mut sync = false;
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
            progress.file(copied?.holes);
            return Ok(());
        }
        Kind::Other => progress.say(&format!("stag: {}: left out: a device, pipe or socket", node.place())),
    }
    progress.file(0);
    Ok(())
}

pub async fn remove(args: &Rm) -> Result<(), CopyError> {
    for url in &args.urls {
        let client = nfs::connect(url, &args.connect).await.map_err(at(url))?;
        let removed = remove_one(&client, url, args.recursive).await;
        client.close().await;
        match removed {
            Err(Error::Status(Status::NoEnt)) if args.force => {}
            removed => removed.map_err(at(url))?,
        }
    }
    Ok(())
}

async fn remove_one(client: &Client, url: &Url, recursive: bool) -> Result<(), Error> {
    let (directory, name) = nfs::parent(client, url).await?;
    let (handle, of) = client.lookup(&directory, &name).await?;
    if of.kind != FileType::Directory {
        return client.remove(&directory, &name, false).await;
    }
    if !recursive {
        return Err(Error::Status(Status::IsDir));
    }
    // Directories, each after those that it is in: they are empty from the last on.
    let mut directories = vec![(directory, name, handle)];
    let mut next = 0;
    while let Some((_, _, here)) = directories.get(next).cloned() {
        next += 1;
        let (mut cursor, mut files) = (Cursor::default(), Vec::new());
        while let Some(page) = client.list(&here, &mut cursor).await? {
            for Entry { name, handle, attributes } in page {
                match attributes.kind {
                    FileType::Directory => directories.push((here.clone(), name, handle)),
                    _ => files.push(name),
                }
            }
        }
        remove_files(client, &here, files).await?;
    }
    for (parent, name, _) in directories.into_iter().rev() {
        gone(client.remove(&parent, &name, true).await)?;
    }
    Ok(())
}

const REMOVALS: u16 = 16;

async fn remove_files(client: &Client, directory: &Handle, files: Vec<Vec<u8>>) -> Result<(), Error> {
    let failed: Rc<RefCell<Option<Error>>> = Rc::default();
    let (first, client, directory) = (failed.clone(), client.clone(), directory.clone());
    work::run(files, REMOVALS, move |name: Vec<u8>, jobs| {
        let (failed, client, directory) = (first.clone(), client.clone(), directory.clone());
        async move {
            if let Err(error) = gone(client.remove(&directory, &name, false).await) {
                failed.borrow_mut().get_or_insert(error);
                jobs.stop();
            }
        }
    })
    .await;
    failed.borrow_mut().take().map_or(Ok(()), Err)
}

/// Somebody else may have removed it, or this client before the server restarted.
fn gone(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(Error::Status(Status::NoEnt)) => Ok(()),
        removed => removed,
    }
}
