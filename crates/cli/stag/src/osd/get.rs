//! `stag osd get`: objects and trees become files of this machine.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use iscsi_client::objects::{MapType, ObjectError, Operation, Pending};
use osd::cdb::ObjectRange;
use osd::{Command, Id};
use runtime::{Chain, blocking};
use serde_json::json;

use super::error::OsdError;
use super::layout::{self, Entry};
use super::local::{self, Kind, Meta, Shortfall};
use super::session::Opened;
use super::tree::Tree;
use crate::args::osd::Get;
use crate::args::place::Object;
use crate::progress::Progress;
use crate::work::{self, Jobs};

/// Bytes of one command.
const PIECE: u64 = 512 << 10;
/// Commands of one object in flight.
const WINDOW: usize = 4;
/// Smallest object that is asked for its holes, bytes. Smaller ones are read whole.
const SPARSE: u64 = 64 << 10;

/// Runs it.
///
/// # Errors
/// The first error that ends it. Errors of single files are reported as they occur.
pub async fn get(args: &Get) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = get_from(args, &opened).await;
    opened.close(result).await
}

async fn get_from(args: &Get, opened: &Opened) -> Result<String, OsdError> {
    let tree = opened.tree()?;
    let getting = Rc::new(Getting {
        tree,
        progress: Progress::new(args.flow.quiet),
        failed: Cell::new(0),
        fatal: RefCell::new(None),
        directories: RefCell::default(),
        links: RefCell::default(),
        shortfall: RefCell::default(),
        // Only root may give files away.
        owners: rustix::process::geteuid().is_root(),
        depth: args.flow.depth,
    });
    match (&args.url.object, args.recursive) {
        (Some(Object::Id(_)), true) => {
            return Err(OsdError::wrong(
                "an object holds no tree",
                "name a directory by its path, or the partition",
            ));
        }
        (_, true) => {
            let path = args.url.path().unwrap_or_default();
            let to = match (&args.to, path.last()) {
                (Some(to), _) => to.clone(),
                (None, Some(name)) => PathBuf::from(OsStr::from_bytes(name)),
                (None, None) => {
                    return Err(OsdError::wrong(
                        "the directory is missing that the tree goes to",
                        "write it behind the URL",
                    ));
                }
            };
            getting.tree(path, &to).await?;
        }
        (Some(Object::Id(id)), false) => {
            let id = Id::new(getting.tree.partition, *id);
            let name = format!("{:#x}", id.object);
            getting.bytes(id, args, Path::new(&name), None).await?;
        }
        (_, false) => {
            let path = args.url.path().unwrap_or_default();
            let Some(name) = path.last() else {
                return Err(OsdError::wrong(
                    "a partition has no bytes",
                    "-r gets its tree; name an object for its bytes",
                ));
            };
            let mut entry = getting.tree.get(path).await?;
            if let (Kind::Link, Some(object)) = (entry.meta.kind, entry.link) {
                let at = OsdError::at(getting.tree.show(path));
                entry = getting.tree.entry(object).await.map_err(at)?.unwrap_or(entry);
            }
            match entry.meta.kind {
                Kind::Regular | Kind::Link => {}
                Kind::Directory => {
                    return Err(OsdError::wrong(
                        format!("{} is a directory", args.url),
                        "-r gets all that is in it",
                    ));
                }
                other => {
                    return Err(OsdError::wrong(
                        format!("{} is a {} and has no bytes", args.url, other.name()),
                        "-r of its directory makes it here",
                    ));
                }
            }
            getting
                .bytes(getting.tree.id(entry.id), args, Path::new(OsStr::from_bytes(name)), Some(entry))
                .await?;
        }
    }
    let shortfall = getting.shortfall.borrow().clone();
    if shortfall.owner {
        say!("stag: owners could not all be given");
    }
    if !shortfall.xattrs.is_empty() {
        say!("stag: these extended attributes could not be set everywhere: {}", shortfall.xattrs.join(", "));
    }
    let (files, bytes, holes) = getting.progress.finish(args.reach.json);
    match getting.failed.get() {
        0 if args.reach.json => {
            Ok(format!("{:#}\n", json!({ "files": files, "bytes": bytes, "holes": holes })))
        }
        0 => Ok(String::new()),
        failed => Err(OsdError::Some(failed)),
    }
}

struct Getting {
    tree: Tree,
    progress: Progress,
    failed: Cell<u64>,
    fatal: RefCell<Option<OsdError>>,
    /// Directories, in an order in which none is before the one that it is in: their modes and
    /// times come last.
    directories: RefCell<Vec<(PathBuf, Meta)>>,
    /// Names of files that have several, by their objects.
    links: RefCell<HashMap<u64, Vec<PathBuf>>>,
    shortfall: RefCell<Shortfall>,
    owners: bool,
    depth: u16,
}

enum Job {
    /// A file, whatever it is, to be made at a path.
    File(Entry, PathBuf),
    /// A file that has several names.
    Shared(u64, Vec<PathBuf>),
}

impl Getting {
    async fn tree(self: &Rc<Self>, from: &[Vec<u8>], to: &Path) -> Result<(), OsdError> {
        let entry = self.tree.get(from).await?;
        if entry.meta.kind != Kind::Directory {
            return Err(OsdError::wrong(format!("{} is no directory", self.tree.show(from)), "leave -r out"));
        }
        self.work(vec![Job::File(entry, to.to_owned())]).await?;
        let links = std::mem::take(&mut *self.links.borrow_mut());
        self.work(links.into_iter().map(|(object, paths)| Job::Shared(object, paths)).collect()).await?;
        // Entries created in a directory have changed its times.
        let directories = std::mem::take(&mut *self.directories.borrow_mut());
        for (path, meta) in directories.into_iter().rev() {
            if let Err(error) = self.finish(&path, &meta).await {
                self.failed.set(self.failed.get() + 1);
                self.progress.say(&format!("stag: {error}"));
            }
        }
        Ok(())
    }

    async fn work(self: &Rc<Self>, jobs: Vec<Job>) -> Result<(), OsdError> {
        let getting = self.clone();
        work::run(jobs, self.depth, move |job, jobs| {
            let getting = getting.clone();
            async move {
                let done = match job {
                    Job::File(entry, path) => getting.file(entry, path, &jobs).await,
                    Job::Shared(object, paths) => getting.shared(object, paths).await,
                };
                let Err(error) = done else { return };
                if error.ends_all() {
                    getting.fatal.borrow_mut().get_or_insert(error);
                    jobs.stop();
                } else {
                    getting.failed.set(getting.failed.get() + 1);
                    getting.progress.say(&format!("stag: {error}"));
                }
            }
        })
        .await;
        self.fatal.borrow_mut().take().map_or(Ok(()), Err)
    }

    async fn file(&self, mut entry: Entry, path: PathBuf, jobs: &Jobs<Job>) -> Result<(), OsdError> {
        if let (Kind::Link, Some(object)) = (entry.meta.kind, entry.link) {
            self.links.borrow_mut().entry(object).or_default().push(path);
            return Ok(());
        }
        entry.meta.xattrs = self.tree.xattrs(&entry).await.map_err(OsdError::at(path.display()))?;
        if entry.meta.kind == Kind::Directory {
            return self.directory(entry, path, jobs).await;
        }
        self.make(&entry, &path).await?;
        self.finish(&path, &entry.meta).await
    }

    async fn directory(&self, entry: Entry, path: PathBuf, jobs: &Jobs<Job>) -> Result<(), OsdError> {
        let made = path.clone();
        let make = move || match std::fs::create_dir(&made) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && made.is_dir() => Ok(()),
            // Parents of the first directory.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::fs::create_dir_all(&made),
            other => other,
        };
        blocking(make).await.map_err(OsdError::io(&path))?;
        self.directories.borrow_mut().push((path.clone(), entry.meta.clone()));
        self.progress.file(0);
        let children = self.tree.children(&entry).await.map_err(OsdError::at(path.display()))?;
        for child in children {
            if !layout::is_name(&child.name) {
                self.failed.set(self.failed.get() + 1);
                let name = String::from_utf8_lossy(&child.name).into_owned();
                self.progress.say(&format!("stag: {}: `{name}` is no name of a file", path.display()));
                continue;
            }
            let path = path.join(OsStr::from_bytes(&child.name));
            jobs.add(Job::File(child, path));
        }
        Ok(())
    }

    async fn shared(&self, object: u64, paths: Vec<PathBuf>) -> Result<(), OsdError> {
        let Some((first, others)) = paths.split_first() else { return Ok(()) };
        let at = || OsdError::at(first.display());
        let Some(mut entry) = self.tree.entry(object).await.map_err(at())? else {
            return Err(OsdError::wrong(
                format!("{}: the object of its link is no file", first.display()),
                "remove the link",
            ));
        };
        entry.meta.xattrs = self.tree.xattrs(&entry).await.map_err(at())?;
        self.make(&entry, first).await?;
        for other in others {
            let (from, to) = (first.clone(), other.clone());
            let link = move || {
                remove_existing(&to)?;
                std::fs::hard_link(&from, &to)
            };
            blocking(link).await.map_err(OsdError::io(other))?;
        }
        // Hard links only change a file's ctime, which cannot be set.
        self.finish(first, &entry.meta).await
    }

    /// Makes a file with its data.
    async fn make(&self, entry: &Entry, path: &Path) -> Result<(), OsdError> {
        if entry.meta.kind != Kind::Regular {
            let (at, meta) = (path.to_owned(), entry.meta.clone());
            let make = move || {
                remove_existing(&at)?;
                local::make(&at, &meta)
            };
            blocking(make).await.map_err(OsdError::io(path))?;
            self.progress.file(0);
            return Ok(());
        }
        let (at, size) = (path.to_owned(), entry.meta.size);
        let make = move || -> std::io::Result<File> {
            remove_existing(&at)?;
            // Private until it has its own mode.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&at)?;
            file.set_len(size)?;
            Ok(file)
        };
        let file = blocking(make).await.map_err(OsdError::io(path))?;
        let id = self.tree.id(entry.id);
        let ranges = self.ranges(id, entry.meta.size).await.map_err(OsdError::at(path.display()))?;
        let data = self.copy(id, path, Arc::new(file), &ranges).await?;
        self.progress.file(entry.meta.size.saturating_sub(data));
        Ok(())
    }

    /// The ranges of an object that have data.
    async fn ranges(&self, id: Id, size: u64) -> Result<Vec<(u64, u64)>, ObjectError> {
        if size < SPARSE {
            return Ok(if size > 0 { vec![(0, size)] } else { Vec::new() });
        }
        match self.tree.device.map(id).await {
            Ok(map) => Ok(data_of(&map, size)),
            // A device, or a credential, without READ MAP: holes are zeros then.
            Err(ObjectError::Failed(_)) => Ok(vec![(0, size)]),
            Err(error) => Err(error),
        }
    }

    /// Reads ranges of an object into the same ranges of a file. Answers how many bytes that were.
    async fn copy(
        &self,
        id: Id,
        path: &Path,
        file: Arc<File>,
        ranges: &[(u64, u64)],
    ) -> Result<u64, OsdError> {
        let mut under_way: VecDeque<(u64, Pending)> = VecDeque::new();
        let mut done = 0;
        let mut pieces = ranges.iter().flat_map(|(at, len)| pieces(*at, *len));
        loop {
            while under_way.len() < WINDOW {
                let Some(range) = pieces.next() else { break };
                let started = self.tree.device.start(Operation::new(Command::Read(id, range))).await;
                under_way.push_back((range.start, started.map_err(OsdError::at(path.display()))?));
            }
            let Some((at, pending)) = under_way.pop_front() else { return Ok(done) };
            let data = pending.finish().await.map_err(OsdError::at(path.display()))?.data;
            let len = data.len() as u64;
            // Buffers belong to this thread's pool; system calls that wait are another's.
            let (file, data) = (file.clone(), data.to_vec());
            blocking(move || file.write_all_at(&data, at)).await.map_err(OsdError::io(path))?;
            self.progress.bytes(len);
            done += len;
        }
    }

    async fn finish(&self, path: &Path, meta: &Meta) -> Result<(), OsdError> {
        let (at, meta, owners) = (path.to_owned(), meta.clone(), self.owners);
        let found = blocking(move || local::finish(&at, &meta, owners)).await.map_err(OsdError::io(path))?;
        let mut shortfall = self.shortfall.borrow_mut();
        shortfall.owner |= found.owner;
        for name in found.xattrs {
            if !shortfall.xattrs.contains(&name) {
                shortfall.xattrs.push(name);
            }
        }
        Ok(())
    }

    /// The bytes of one object, to a file or stdout.
    async fn bytes(&self, id: Id, args: &Get, own: &Path, entry: Option<Entry>) -> Result<(), OsdError> {
        let place = args.url.to_string();
        let size = self.tree.device.len(id).await.map_err(OsdError::at(&place))?;
        if args.offset > size {
            return Err(OsdError::wrong(format!("{place} ends at byte {size}"), "choose a lower --offset"));
        }
        let len = args.length.unwrap_or(u64::MAX).min(size - args.offset);
        let to = args.to.as_deref().unwrap_or(own);
        if to.as_os_str() == "-" {
            let mut under_way: VecDeque<Pending> = VecDeque::new();
            let mut pieces = pieces(args.offset, len);
            loop {
                while under_way.len() < 2 * WINDOW {
                    let Some(range) = pieces.next() else { break };
                    let started = self.tree.device.start(Operation::new(Command::Read(id, range))).await;
                    under_way.push_back(started.map_err(OsdError::at(&place))?);
                }
                let Some(pending) = under_way.pop_front() else { break };
                let data = pending.finish().await.map_err(OsdError::at(&place))?.data;
                let (bytes, data) = (data.len() as u64, data.to_vec());
                blocking(move || crate::out::write(&data)).await?;
                self.progress.bytes(bytes);
            }
            self.progress.file(0);
            return Ok(());
        }
        let path = if to.is_dir() { to.join(own) } else { to.to_owned() };
        // A part of an object, or an object that is no file of a tree, becomes a plain new file. A
        // whole file gets its properties back.
        let whole = entry.filter(|_| args.offset == 0 && args.length.is_none());
        if let Some(mut entry) = whole {
            entry.meta.xattrs = self.tree.xattrs(&entry).await.map_err(OsdError::at(&place))?;
            self.make(&entry, &path).await?;
            return self.finish(&path, &entry.meta).await;
        }
        let at = path.clone();
        let file = blocking(move || {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&at)?;
            // A device, or a pipe, has no length.
            if file.metadata()?.is_file() {
                file.set_len(len)?;
            }
            std::io::Result::Ok(file)
        });
        let file = file.await.map_err(OsdError::io(&path))?;
        let ranges = match args.offset {
            0 => self.ranges(id, len).await.map_err(OsdError::at(&place))?,
            _ => vec![(args.offset, len)],
        };
        if args.offset == 0 {
            let data = self.copy(id, &path, Arc::new(file), &ranges).await?;
            self.progress.file(len.saturating_sub(data));
            return Ok(());
        }
        // From somewhere within on: the file begins there.
        for range in pieces(args.offset, len) {
            let data =
                self.tree.device.read(id, range.start, range.len).await.map_err(OsdError::at(&place))?;
            write_at(&file, &data, range.start - args.offset).map_err(OsdError::io(&path))?;
            self.progress.bytes(data.len() as u64);
        }
        self.progress.file(0);
        Ok(())
    }
}

/// Splits a range into those of one command each, which begin where those of the whole would.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = ObjectRange> {
    let (mut at, end) = (at, at.saturating_add(len));
    std::iter::from_fn(move || {
        let len = (PIECE - at % PIECE).min(end - at);
        let piece = ObjectRange { start: at, len };
        at += len;
        (len > 0).then_some(piece)
    })
}

/// The ranges of a map that are no holes, joined where they touch.
fn data_of(map: &[iscsi_client::objects::MapEntry], size: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for part in map {
        // Damaged data is to be read, and to fail.
        if !matches!(part.kind, MapType::Written | MapType::Damaged) || part.at >= size {
            continue;
        }
        let len = part.len.min(size - part.at);
        match ranges.last_mut() {
            Some((at, before)) if *at + *before == part.at => *before += len,
            _ => ranges.push((part.at, len)),
        }
    }
    ranges
}

/// Removes an existing file; a directory is an error.
fn remove_existing(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_at(file: &File, data: &Chain, at: u64) -> std::io::Result<()> {
    let (mut at, mut result) = (at, Ok(()));
    data.for_each_slice(|slice| {
        if result.is_ok() {
            result = file.write_all_at(slice, at);
            at += slice.len() as u64;
        }
    });
    result
}

#[cfg(test)]
mod tests {
    use iscsi_client::objects::MapEntry;

    use super::*;

    #[test]
    fn what_a_map_says_is_data_is_read_and_nothing_else() {
        let part = |kind, at, len| MapEntry { kind, at, len };
        let map = [
            part(MapType::Written, 0, 10),
            part(MapType::Written, 10, 10),
            part(MapType::Hole, 20, 100),
            part(MapType::Damaged, 120, 5),
            part(MapType::DamagedAttributes, 0, 0),
            part(MapType::Written, 125, 1000),
            part(MapType::Written, 5000, 1),
        ];
        assert_eq!(data_of(&map, 200), [(0, 20), (120, 80)]);
        assert_eq!(data_of(&[], 200), []);
    }
}
