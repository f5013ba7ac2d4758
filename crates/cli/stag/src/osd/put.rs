//! `stag osd put`: files and trees of this machine become objects.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use iscsi_client::objects::{Attribute, New, ObjectError, Operation, Pending};
use osd::attributes::numbers::user_information;
use osd::cdb::ObjectRange;
use osd::{Command, Id};
use runtime::{Buf, blocking};
use serde_json::json;

use super::error::OsdError;
use super::layout::{self, Entry};
use super::local::{self, Kind, Meta, Time};
use super::session::Opened;
use super::tree::Tree;
use crate::args::osd::Put;
use crate::args::place::Object;
use crate::progress::Progress;
use crate::work::{self, Jobs};

/// Bytes of one command.
const PIECE: u64 = 512 << 10;
/// Files of up to so many bytes are made by one command.
const WHOLE: u64 = 512 << 10;
/// Commands of one large file in flight.
const WINDOW: usize = 4;

/// Runs it.
///
/// # Errors
/// The first error that ends it. Errors of single files are reported as they occur.
pub async fn put(args: &Put) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = put_into(args, &opened).await;
    opened.close(result).await
}

async fn put_into(args: &Put, opened: &Opened) -> Result<String, OsdError> {
    let tree = opened.tree()?;
    let partition = tree.partition;
    let putting = Rc::new(Putting {
        tree,
        progress: Progress::new(args.flow.quiet),
        failed: Cell::new(0),
        fatal: RefCell::new(None),
        shared: RefCell::default(),
        depth: args.flow.depth,
    });
    let stdin = args.from.as_os_str() == "-";
    let made = match (&args.url.object, args.recursive) {
        (Some(Object::Id(_)), true) => {
            return Err(OsdError::wrong(
                "an object holds no tree",
                "name a directory by its path, or the partition",
            ));
        }
        (Some(Object::Id(id)), false) => {
            let id = Id::new(partition, *id);
            putting.replace(id, &args.from).await?;
            Some(id.object)
        }
        (None, false) if stdin => Some(putting.stdin(None, b"").await?),
        (_, false) => Some(putting.one(&args.from, args.url.path().unwrap_or_default()).await?),
        (_, true) => {
            putting.tree(&args.from, args.url.path().unwrap_or_default()).await?;
            None
        }
    };
    if !args.no_sync {
        let device = &putting.tree.device;
        device.flush_partition(partition).await.map_err(OsdError::at(&putting.tree.place))?;
    }
    let (files, bytes, holes) = putting.progress.finish(args.reach.json);
    let failed = putting.failed.get();
    if failed > 0 {
        return Err(OsdError::Some(failed));
    }
    Ok(match made {
        _ if args.reach.json => {
            let id = made.map(|id| format!("{id:#x}"));
            format!("{:#}\n", json!({ "files": files, "bytes": bytes, "holes": holes, "id": id }))
        }
        // The number of an object that has a name is not needed.
        Some(id) if args.url.path() == Some(&[]) && stdin => format!("{id:#x}\n"),
        _ => String::new(),
    })
}

struct Putting {
    tree: Tree,
    progress: Progress,
    /// Files that could not be put.
    failed: Cell<u64>,
    /// The error that ended the put.
    fatal: RefCell<Option<OsdError>>,
    /// Files that have several names, by what tells them apart here: where those names are.
    shared: RefCell<HashMap<(u64, u64), Vec<NameOf>>>,
    depth: u16,
}

/// A name of a file that has several.
struct NameOf {
    path: PathBuf,
    collection: u64,
    name: Vec<u8>,
    there: Option<Entry>,
}

enum Job {
    /// A file of a directory here, whatever it is.
    File { path: PathBuf, collection: u64, name: Vec<u8>, there: Option<Entry> },
    /// All that is in a directory here.
    Inside { path: PathBuf, entry: Entry, fresh: bool },
    /// A file that has several names, with all of them.
    Shared(Vec<NameOf>),
}

impl Putting {
    /// Puts a whole tree: the contents of `from` become the contents of `to`.
    async fn tree(self: &Rc<Self>, from: &Path, to: &[Vec<u8>]) -> Result<(), OsdError> {
        let about = local::meta(from).map_err(OsdError::io(from))?;
        let about = match about.kind {
            Kind::Directory => about,
            // A symlink to a directory on the command line stands for the directory.
            Kind::Symlink => {
                let real = std::fs::canonicalize(from).map_err(OsdError::io(from))?;
                local::meta(&real).map_err(OsdError::io(&real))?
            }
            _ => about,
        };
        if about.kind != Kind::Directory {
            return Err(OsdError::wrong(
                format!("{} is no directory", from.display()),
                "leave -r out to put a file",
            ));
        }
        let (entry, fresh) = self.directory(to, &about).await?;
        self.work(vec![Job::Inside { path: from.to_owned(), entry, fresh }]).await?;
        let shared = std::mem::take(&mut *self.shared.borrow_mut());
        self.work(shared.into_values().map(Job::Shared).collect()).await
    }

    async fn work(self: &Rc<Self>, jobs: Vec<Job>) -> Result<(), OsdError> {
        let putting = self.clone();
        work::run(jobs, self.depth, move |job, jobs| {
            let putting = putting.clone();
            async move {
                let done = match job {
                    Job::File { path, collection, name, there } => {
                        putting.file(path, collection, name, there, &jobs).await
                    }
                    Job::Inside { path, entry, fresh } => putting.inside(path, entry, fresh, &jobs).await,
                    Job::Shared(names) => putting.shared_file(names).await,
                };
                putting.note(done, &jobs);
            }
        })
        .await;
        self.fatal.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn note(&self, done: Result<(), OsdError>, jobs: &Jobs<Job>) {
        let Err(error) = done else { return };
        if error.ends_all() {
            self.fatal.borrow_mut().get_or_insert(error);
            jobs.stop();
        } else {
            self.failed.set(self.failed.get() + 1);
            self.progress.say(&format!("stag: {error}"));
        }
    }

    /// The directory of a path, made with those above it where they are missing; and whether it is
    /// new. One that is there becomes like `meta`.
    async fn directory(&self, path: &[Vec<u8>], meta: &Meta) -> Result<(Entry, bool), OsdError> {
        let tree = &self.tree;
        let mut here = tree.make_top().await?;
        let mut fresh = false;
        for (depth, name) in path.iter().enumerate() {
            let place = tree.show(&path[..=depth]);
            let there = tree.child(&here, name).await.map_err(OsdError::at(&place))?;
            here = match there {
                Some(there) if there.meta.kind == Kind::Directory => there,
                Some(_) => {
                    return Err(OsdError::wrong(
                        format!("{place} is no directory"),
                        "remove it, or put to another path",
                    ));
                }
                None => {
                    fresh = true;
                    tree.make_directory(here.collection, name, meta).await.map_err(OsdError::at(&place))?
                }
            };
        }
        if !fresh {
            let set = layout::attributes(meta);
            tree.device.set_attributes(tree.id(here.id), set).await.map_err(OsdError::at(tree.show(path)))?;
        }
        Ok((here, fresh))
    }

    async fn inside(
        &self,
        path: PathBuf,
        entry: Entry,
        fresh: bool,
        jobs: &Jobs<Job>,
    ) -> Result<(), OsdError> {
        let listed = path.clone();
        let names = blocking(move || local::names(&listed)).await.map_err(OsdError::io(&path))?;
        let mut there: HashMap<Vec<u8>, Entry> = HashMap::new();
        if !fresh && !names.is_empty() {
            let children = self.tree.children(&entry).await.map_err(OsdError::at(&self.tree.place))?;
            there.extend(children.into_iter().map(|child| (child.name.clone(), child)));
        }
        let Some(collection) = entry.collection else { return Ok(()) };
        for name in names.into_iter().rev() {
            let (path, there) = (path.join(OsStr::from_bytes(&name)), there.remove(&name));
            jobs.add(Job::File { path, collection, name, there });
        }
        Ok(())
    }

    async fn file(
        &self,
        path: PathBuf,
        collection: u64,
        name: Vec<u8>,
        there: Option<Entry>,
        jobs: &Jobs<Job>,
    ) -> Result<(), OsdError> {
        let asked = path.clone();
        let meta = blocking(move || local::meta(&asked)).await.map_err(OsdError::io(&path))?;
        let at = |path: &Path| OsdError::at(path.display().to_string());
        if meta.kind == Kind::Directory {
            if let Some(there) = there.as_ref().filter(|there| there.meta.kind == Kind::Directory) {
                let set = layout::attributes(&meta);
                self.tree.device.set_attributes(self.tree.id(there.id), set).await.map_err(at(&path))?;
                jobs.add(Job::Inside { path, entry: there.clone(), fresh: false });
                return Ok(());
            }
            let entry = self.tree.make_directory(Some(collection), &name, &meta).await.map_err(at(&path))?;
            self.give_way(there, &path).await?;
            self.progress.file(0);
            jobs.add(Job::Inside { path, entry, fresh: true });
            return Ok(());
        }
        if let Some(shared) = meta.shared {
            let name = NameOf { path, collection, name, there };
            self.shared.borrow_mut().entry(shared).or_default().push(name);
            return Ok(());
        }
        let place = self.tree.place_in(Some(collection), &name);
        self.make(&path, &meta, place).await?;
        self.give_way(there, &path).await
    }

    /// Makes a file that has several names: an object without a place, and a link for each name.
    /// With one name only in the tree, it is a file like any other.
    async fn shared_file(&self, names: Vec<NameOf>) -> Result<(), OsdError> {
        let Some(first) = names.first() else { return Ok(()) };
        let path = first.path.clone();
        let asked = path.clone();
        let meta = blocking(move || local::meta(&asked)).await.map_err(OsdError::io(&path))?;
        if names.len() == 1 {
            let place = self.tree.place_in(Some(first.collection), &first.name);
            self.make(&path, &meta, place).await?;
        } else {
            let object = self.make(&path, &meta, Vec::new()).await?;
            for name in &names {
                let made = self.tree.make_link(name.collection, &name.name, object.object).await;
                made.map_err(OsdError::at(name.path.display()))?;
            }
            self.tree.finish(object, [], path.display()).await?;
        }
        for name in names {
            self.give_way(name.there, &name.path).await?;
        }
        Ok(())
    }

    /// Removes the old object of the same name, now that the new one exists.
    async fn give_way(&self, there: Option<Entry>, path: &Path) -> Result<(), OsdError> {
        let Some(there) = there else { return Ok(()) };
        let removed = match there.meta.kind {
            Kind::Directory => self.tree.remove_directory(&there).await,
            _ => self.tree.remove_file(&there).await,
        };
        match removed {
            Err(error) if !error.is_not_found() => Err(OsdError::at(path.display())(error)),
            _ => Ok(()),
        }
    }

    /// Makes the object of a local file that is no directory. `place`: the attributes that put it
    /// into its directory once it is complete. Without any, the object stays marked as unfinished.
    async fn make(&self, path: &Path, meta: &Meta, place: Vec<Attribute>) -> Result<Id, OsdError> {
        let at = || OsdError::at(path.display().to_string());
        let tree = &self.tree;
        let mut attributes = layout::attributes(meta);
        if place.is_empty() {
            attributes.push(layout::unfinished());
        }
        if meta.kind != Kind::Regular || meta.size == 0 {
            attributes.extend(place);
            let id = tree
                .device
                .create(tree.partition, New { attributes, ..New::default() })
                .await
                .map_err(at())?;
            self.progress.file(0);
            return Ok(id);
        }
        let (asked, size) = (path.to_owned(), meta.size);
        let opened = blocking(move || -> std::io::Result<_> {
            let file = File::open(&asked)?;
            let ranges = local::data_ranges(&file, size)?;
            let whole = (ranges.as_slice() == [(0, size)] && size <= WHOLE).then(|| {
                let mut data = vec![0; size as usize];
                let read = read_at(&file, &mut data, 0)?;
                data.truncate(read);
                std::io::Result::Ok(data)
            });
            Ok((file, ranges, whole.transpose()?))
        });
        let (file, ranges, whole) = opened.await.map_err(OsdError::io(path))?;
        if let Some(data) = whole {
            attributes.extend(place);
            let new = New { attributes, ..New::default() };
            let len = data.len() as u64;
            let id = tree.device.create_with(tree.partition, new, Buf::from(data)).await.map_err(at())?;
            self.progress.bytes(len);
            self.progress.file(0);
            return Ok(id);
        }
        attributes.push(Attribute::number(user_information::LOGICAL_LENGTH, size));
        if !place.is_empty() {
            attributes.push(layout::unfinished());
        }
        let id =
            tree.device.create(tree.partition, New { attributes, ..New::default() }).await.map_err(at())?;
        let written = async {
            self.write(id, path, Arc::new(file), &ranges).await?;
            match place.is_empty() {
                true => Ok(()),
                false => tree.finish(id, place, path.display()).await,
            }
        };
        if let Err(error) = written.await {
            // A partial object is useless. The first error is the one to report.
            let _ = tree.device.remove(id).await;
            return Err(error);
        }
        let data: u64 = ranges.iter().map(|(_, len)| len).sum();
        self.progress.file(size.saturating_sub(data));
        Ok(id)
    }

    /// Writes ranges of a file here to the same ranges of an object.
    async fn write(
        &self,
        id: Id,
        path: &Path,
        file: Arc<File>,
        ranges: &[(u64, u64)],
    ) -> Result<(), OsdError> {
        let mut under_way = Window::new(&self.progress);
        for (begin, len) in ranges {
            let (mut at, end) = (*begin, begin + len);
            while at < end {
                // Pieces begin where a piece of the whole would, so that the device sees aligned
                // ones.
                let len = (PIECE - at % PIECE).min(end - at);
                let file = file.clone();
                let read = blocking(move || {
                    let mut data = vec![0; len as usize];
                    let read = read_at(&file, &mut data, at)?;
                    data.truncate(read);
                    std::io::Result::Ok(data)
                });
                let data = read.await.map_err(OsdError::io(path))?;
                let read = data.len() as u64;
                if read > 0 {
                    let range = ObjectRange { start: at, len: read };
                    let operation = Operation::new(Command::Write(id, range)).writing(Buf::from(data));
                    let place = || OsdError::at(path.display().to_string());
                    under_way
                        .add(self.tree.device.start(operation).await.map_err(place())?, read)
                        .await
                        .map_err(place())?;
                }
                if read < len {
                    // The file was truncated while it was read: keep the part that was there.
                    break;
                }
                at += len;
            }
        }
        under_way.finish().await.map_err(OsdError::at(path.display()))
    }

    /// A file, or stdin, to a path. Answers the object's id.
    async fn one(self: &Rc<Self>, from: &Path, to: &[Vec<u8>]) -> Result<u64, OsdError> {
        let stdin = from.as_os_str() == "-";
        let tree = &self.tree;
        let mut top = tree.make_top().await?;
        let own = from.file_name().map(|name| name.as_bytes().to_vec());
        let (name, there) = match to.split_last() {
            None => (own, None),
            Some((last, above)) => {
                if !above.is_empty() {
                    top = tree.get(above).await?;
                }
                let there = tree.child(&top, last).await.map_err(OsdError::at(tree.show(to)))?;
                match there {
                    Some(there) if there.meta.kind == Kind::Directory && !stdin => {
                        top = there;
                        (own, None)
                    }
                    Some(there) if there.meta.kind == Kind::Directory => {
                        return Err(OsdError::wrong(
                            format!("{} is a directory", tree.show(to)),
                            "write the name that the file shall have behind it",
                        ));
                    }
                    there => (Some(last.clone()), there),
                }
            }
        };
        let Some(name) = name.filter(|name| layout::is_name(name)) else {
            return Err(OsdError::wrong("the file has no name", "write it behind the partition in the URL"));
        };
        let Some(collection) = top.collection else {
            return Err(OsdError::wrong(
                format!("{} is no directory", tree.show(to)),
                "put to a path in a directory",
            ));
        };
        let there = match there {
            None => tree.child(&top, &name).await.map_err(OsdError::at(tree.show(to)))?,
            there => there,
        };
        if there.as_ref().is_some_and(|there| there.meta.kind == Kind::Directory) {
            return Err(OsdError::wrong("a directory has that name", "remove it, or put under another name"));
        }
        if stdin {
            let id = self.stdin(Some(collection), &name).await?;
            self.give_way(there, from).await?;
            return Ok(id);
        }
        let meta = std::fs::metadata(from).and_then(|_| local::meta(&std::fs::canonicalize(from)?));
        let meta = meta.map_err(OsdError::io(from))?;
        if meta.kind == Kind::Directory {
            return Err(OsdError::wrong(
                format!("{} is a directory", from.display()),
                "-r puts all that is in it",
            ));
        }
        let id = self.make(from, &meta, tree.place_in(Some(collection), &name)).await?;
        self.give_way(there, from).await?;
        Ok(id.object)
    }

    /// All of stdin becomes an object: a file of the tree if it has a name.
    async fn stdin(&self, collection: Option<u64>, name: &[u8]) -> Result<u64, OsdError> {
        let tree = &self.tree;
        let place = tree.show(&[name.to_vec()]);
        let mut new = New::default();
        if collection.is_some() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let now = Time { s: i64::try_from(now.as_secs()).unwrap_or(0), ns: now.subsec_nanos() };
            let meta = Meta {
                kind: Kind::Regular,
                mode: 0o644,
                uid: rustix::process::getuid().as_raw(),
                gid: rustix::process::getgid().as_raw(),
                mtime: now,
                atime: now,
                size: 0,
                device: (0, 0),
                target: None,
                xattrs: Vec::new(),
                shared: None,
            };
            new.attributes = layout::attributes(&meta);
        }
        new.attributes.push(layout::unfinished());
        let id = tree.device.create(tree.partition, new).await.map_err(OsdError::at(&place))?;
        let written = async {
            self.stream(id, 0).await?;
            let set = match collection {
                Some(_) => tree.place_in(collection, name),
                None => Vec::new(),
            };
            tree.finish(id, set, &place).await
        };
        if let Err(error) = written.await {
            let _ = tree.device.remove(id).await;
            return Err(error);
        }
        self.progress.file(0);
        Ok(id.object)
    }

    /// Writes stdin to an object. Answers where it ended.
    async fn stream(&self, id: Id, from: u64) -> Result<u64, OsdError> {
        let mut at = from;
        let mut under_way = Window::new(&self.progress);
        loop {
            let read = blocking(move || {
                let mut data = Vec::new();
                std::io::stdin().lock().take(PIECE).read_to_end(&mut data).map(|_| data)
            });
            let data = read.await.map_err(|error| OsdError::Io { place: "stdin".into(), error })?;
            let len = data.len() as u64;
            if len == 0 {
                break;
            }
            let operation =
                Operation::new(Command::Write(id, ObjectRange { start: at, len })).writing(Buf::from(data));
            let pending = self.tree.device.start(operation).await.map_err(OsdError::at(id))?;
            under_way.add(pending, len).await.map_err(OsdError::at(id))?;
            at += len;
        }
        under_way.finish().await.map_err(OsdError::at(id))?;
        Ok(at)
    }

    /// Replaces the bytes of an object by those of a file or stdin; one that is not there is made.
    async fn replace(&self, id: Id, from: &Path) -> Result<(), OsdError> {
        let device = &self.tree.device;
        let place = format!("{}/{:#x}", self.tree.place, id.object);
        // A put that was cut off may have left its mark there.
        let emptied = [Attribute::number(user_information::LOGICAL_LENGTH, 0), layout::finished()];
        match device.set_attributes(id, emptied).await {
            Err(error) if error.is_not_found() => {
                let new = New::default().id(id.object);
                device.create(id.partition, new).await.map_err(OsdError::at(&place))?;
            }
            other => other.map_err(OsdError::at(&place))?,
        }
        if from.as_os_str() == "-" {
            self.stream(id, 0).await?;
        } else {
            let file = File::open(from).map_err(OsdError::io(from))?;
            let size = file.metadata().map_err(OsdError::io(from))?.len();
            let ranges = local::data_ranges(&file, size).map_err(OsdError::io(from))?;
            device.set_len(id, size).await.map_err(OsdError::at(&place))?;
            self.write(id, from, Arc::new(file), &ranges).await?;
        }
        self.progress.file(0);
        Ok(())
    }
}

/// Writes in flight, a few at once.
struct Window<'a> {
    under_way: VecDeque<(Pending, u64)>,
    progress: &'a Progress,
}

impl<'a> Window<'a> {
    fn new(progress: &'a Progress) -> Self {
        Self { under_way: VecDeque::new(), progress }
    }

    async fn add(&mut self, pending: Pending, bytes: u64) -> Result<(), ObjectError> {
        self.under_way.push_back((pending, bytes));
        if self.under_way.len() >= WINDOW { self.one().await } else { Ok(()) }
    }

    async fn one(&mut self) -> Result<(), ObjectError> {
        if let Some((pending, bytes)) = self.under_way.pop_front() {
            pending.finish().await?;
            self.progress.bytes(bytes);
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), ObjectError> {
        while !self.under_way.is_empty() {
            self.one().await?;
        }
        Ok(())
    }
}

/// Reads up to the end of `data`, or of the file.
fn read_at(file: &File, data: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
