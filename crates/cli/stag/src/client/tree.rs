//! `stag cp -r` and `stag rm`: whole trees, local ones and those of NFS servers, with many files in
//! flight. Names and links from a server never lead out of the destination directory.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::rc::Rc;

use nfs_client::{Client, Cursor, Entry, Error, FileType, Handle, SetAttributes, Status, Url};

use super::connect::Opened;
use super::copy::{CopyError, Plan, Sink, Work, open_output};
use super::kept::{About, Kind, Made};
use super::nfs::{self, OpenFile};
use super::node::{Node, at, is_lost, no_tree, on, through};
use crate::args::{Connect, Place, Remote, Rm, Transfer};
use crate::progress::Progress;
use crate::work::{self, Jobs};

/// The destination of a node: a name in a directory.
enum Spot {
    Local(PathBuf),
    Remote { client: Client, url: Url, directory: Handle, name: Vec<u8> },
}

/// A directory that is copied to.
enum Inside {
    Local(PathBuf),
    Remote { client: Client, url: Url, directory: Handle },
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

impl Inside {
    fn made(&self) -> Made {
        match self {
            Self::Local(path) => Made::Local(path.clone()),
            Self::Remote { client, url, directory } => {
                Made::Remote { client: client.clone(), url: url.clone(), handle: directory.clone() }
            }
        }
    }
}

impl Spot {
    /// Attributes of the file that is there.
    async fn about(&self) -> Option<About> {
        match self {
            Self::Local(path) => path.symlink_metadata().ok().as_ref().map(About::from),
            Self::Remote { client, directory, name, .. } => {
                client.lookup(directory, name).await.ok().map(|(_, of)| About::from(&of))
            }
        }
    }

    /// Creates a directory here, or takes the existing one.
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

    /// Creates a file here in place of an existing one, and opens it.
    async fn create(&self, mode: u32) -> Result<(Sink<Opened>, Made), CopyError> {
        match self {
            Self::Local(path) => {
                if path.is_symlink() {
                    std::fs::remove_file(path).map_err(on(path))?;
                }
                let new = !path.exists();
                let sink = open_output(path, Work::Copy)?;
                if new {
                    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(on(path))?;
                }
                Ok((sink, Made::Local(path.clone())))
            }
            Self::Remote { client, url, directory, name } => {
                let made = OpenFile::create(client, directory, name, mode, url.to_string()).await;
                let file = made.map_err(at(url))?;
                let (client, url, handle) = (client.clone(), url.clone(), file.handle().clone());
                Ok((Sink::Unit(Rc::new(Opened::File(file))), Made::Remote { client, url, handle }))
            }
        }
    }

    /// Creates a symbolic link here in place of an existing one.
    async fn link(&self, target: &[u8]) -> Result<Made, CopyError> {
        match self {
            Self::Local(path) => {
                if path.is_symlink() {
                    std::fs::remove_file(path).map_err(on(path))?;
                }
                symlink(OsStr::from_bytes(target), path).map_err(on(path))?;
                Ok(Made::Local(path.clone()))
            }
            Self::Remote { client, url, directory, name } => {
                let made = match client.symlink(directory, name, target).await {
                    Err(Error::Status(Status::Exist)) => {
                        client.remove(directory, name, false).await.map_err(at(url))?;
                        client.symlink(directory, name, target).await
                    }
                    made => made,
                };
                made.map_err(at(url))?;
                let (client, url) = (client.clone(), url.clone());
                let (handle, _) = client.lookup(directory, name).await.map_err(at(&url))?;
                Ok(Made::Remote { client, url, handle })
            }
        }
    }
}

/// A copy of a tree in progress.
struct Copying {
    plan: Plan,
    /// Bits of the mode that new files may get: no server makes a local program run as its owner.
    mask: u32,
    /// Times, modes and owners are kept.
    preserve: bool,
    /// Files that were copied before are left as they are.
    resume: bool,
    progress: Progress,
    failed: Cell<u64>,
    /// Files that were there already.
    there: Cell<u64>,
    /// The error with which the server was lost: nothing more can be copied.
    lost: RefCell<Option<CopyError>>,
    /// Attributes that directories get once all their entries are copied.
    directories: RefCell<Vec<(Made, About)>>,
}

impl Copying {
    /// Reports an error and goes on, unless the server is lost.
    fn note<J: 'static>(&self, outcome: Result<(), CopyError>, jobs: &Jobs<J>) {
        match outcome {
            Ok(()) => {}
            Err(error) if is_lost(&error) => {
                self.lost.borrow_mut().get_or_insert(error);
                jobs.stop();
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &CopyError) {
        self.failed.set(self.failed.get() + 1);
        self.progress.say(&format!("stag: {error}"));
    }

    /// Ends the copy. Directories get their times in reverse order of creation: a new entry changes
    /// its directory's time.
    async fn finish(&self) -> Result<(), CopyError> {
        let directories = self.directories.take();
        if self.lost.borrow().is_none() {
            for (made, about) in directories.into_iter().rev() {
                if let Err(error) = made.keep(&about).await {
                    self.failed(&error);
                }
            }
        }
        let (failed, there) = (self.failed.get(), self.there.get());
        let lost = self.lost.take();
        self.progress.finish(failed > 0 || lost.is_some());
        if there > 0 {
            self.progress.say(&format!("stag: {there} files were copied before"));
        }
        match lost {
            Some(error) => {
                self.progress.say("stag: the copy ends here: the same with --resume goes on");
                Err(error)
            }
            None if failed > 0 => Err(CopyError::Misfit(match failed {
                1 => "1 file or directory was not copied, all others were".into(),
                _ => format!("{failed} files or directories were not copied, all others were"),
            })),
            None => Ok(()),
        }
    }
}

/// Options of a tree copy.
#[derive(Clone, Copy)]
pub struct Keeping {
    /// Times, modes and owners.
    pub preserve: bool,
    /// Files that an earlier copy has finished stay as they are.
    pub resume: bool,
}

/// Copies a directory or file with all below it. An error of one file does not stop the others.
pub async fn copy_tree(
    from: &Place,
    to: &Place,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
    keeping: Keeping,
) -> Result<(), CopyError> {
    let mut clients = Vec::new();
    let node = Node::find(from, connect, &mut clients).await?;
    let name = node.name()?;
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
    let preserve = keeping.preserve || keeping.resume;
    let copying = Rc::new(Copying {
        // `--resume` takes a file with its time for a whole one: after a power failure too.
        plan: Plan { sync: preserve, ..plan.clone() },
        mask: !umask() & 0o777,
        preserve,
        resume: keeping.resume,
        progress: Progress::new(transfer.quiet),
        failed: Cell::new(0),
        there: Cell::new(0),
        lost: RefCell::default(),
        directories: RefCell::default(),
    });
    let shared = copying.clone();
    work::run(vec![(node, spot)], transfer.depth, move |(node, spot), jobs| {
        let copying = shared.clone();
        async move { copying.note(one(&node, spot, &copying, &jobs).await, &jobs) }
    })
    .await;
    let outcome = copying.finish().await;
    for client in clients {
        client.close().await;
    }
    outcome
}

/// This process's umask.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o022)
}

/// Copies one file or link, or makes one directory and begins its entries.
async fn one(node: &Node, spot: Spot, copying: &Copying, jobs: &Jobs<(Node, Spot)>) -> Result<(), CopyError> {
    let (about, progress) = (node.about()?, &copying.progress);
    let mode = about.mode & copying.mask;
    if copying.resume
        && about.kind != Kind::Directory
        && spot.about().await.is_some_and(|there| about.is_copied_as(&there))
    {
        copying.there.set(copying.there.get() + 1);
        return Ok(());
    }
    let made = match about.kind {
        Kind::Directory => {
            let inside = spot.directory(mode).await?;
            if copying.preserve {
                copying.directories.borrow_mut().push((inside.made(), about));
            }
            node.children(|name, child| jobs.add((child, inside.spot(name)))).await?;
            return Ok(());
        }
        Kind::Symlink => {
            let made = spot.link(&node.target().await?).await?;
            progress.file(0);
            made
        }
        Kind::File => {
            let (source, (sink, made)) = (node.open().await?, spot.create(mode).await?);
            let copied = through(source, sink, &copying.plan, progress).await?;
            progress.file(copied.holes);
            made
        }
        Kind::Other => {
            progress.say(&format!("stag: {}: left out: a device, pipe or socket", node.place()));
            return Ok(());
        }
    };
    if copying.preserve { made.keep(&about).await } else { Ok(()) }
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
    // Directories, parents first: they are emptied from the last on.
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

/// Accepts a file that is gone: another client may have removed it, or this one before the server
/// restarted.
fn gone(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(Error::Status(Status::NoEnt)) => Ok(()),
        removed => removed,
    }
}
