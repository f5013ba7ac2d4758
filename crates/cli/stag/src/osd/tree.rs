//! The tree of files in a partition: its top, the resolution of paths, the contents of directories,
//! and the creation of files.

use iscsi_client::objects::{Attribute, Listed, New, ObjectError, Objects, Operation, Query, Range, member};
use osd::{Command, Id};

use super::error::OsdError;
use super::layout::{self, Entry, KIND, LINK, LISTED, NAME, TOP};
use super::local::{Kind, Meta};

/// A partition as a tree.
#[derive(Clone, Debug)]
pub struct Tree {
    pub device: Objects,
    pub partition: u64,
    /// The partition's URL, for messages.
    pub place: String,
}

impl Tree {
    /// A path of the tree as it is shown.
    pub fn show(&self, path: &[Vec<u8>]) -> String {
        path.iter()
            .fold(self.place.clone(), |shown, part| format!("{shown}/{}", String::from_utf8_lossy(part)))
    }

    /// An object of the partition.
    pub fn id(&self, object: u64) -> Id {
        Id::new(self.partition, object)
    }

    /// The top directory; `None` if the partition holds no tree.
    pub async fn top(&self) -> Result<Option<Entry>, OsdError> {
        let top = self
            .device
            .attribute(Id::partition(self.partition), TOP)
            .await
            .map_err(OsdError::at(&self.place))?;
        match top.as_deref().and_then(iscsi_client::objects::number) {
            Some(object) => self.entry(object).await.map_err(OsdError::at(&self.place)),
            None => Ok(None),
        }
    }

    /// The top directory, which is made if there is none.
    pub async fn make_top(&self) -> Result<Entry, OsdError> {
        if let Some(top) = self.top().await? {
            return Ok(top);
        }
        let meta = new_directory();
        let at = || OsdError::at(&self.place);
        let top = self.make_directory(None, b"", &meta).await.map_err(at())?;
        let set = [Attribute::number(TOP, top.id)];
        self.device.set_attributes(Id::partition(self.partition), set).await.map_err(at())?;
        Ok(top)
    }

    /// The file that an object is; `None` if it is none.
    pub async fn entry(&self, object: u64) -> Result<Option<Entry>, ObjectError> {
        let id = self.id(object);
        let attributes = self.device.attributes(id, LISTED).await?;
        Ok(layout::entry(&Listed { id, attributes }))
    }

    /// The object at a path, if any.
    pub async fn find(&self, path: &[Vec<u8>]) -> Result<Option<Entry>, OsdError> {
        let Some(mut here) = self.top().await? else { return Ok(None) };
        for (depth, name) in path.iter().enumerate() {
            let place = self.show(&path[..=depth]);
            match self.child(&here, name).await.map_err(OsdError::at(place))? {
                Some(child) => here = child,
                None => return Ok(None),
            }
        }
        Ok(Some(here))
    }

    /// The object at a path.
    pub async fn get(&self, path: &[Vec<u8>]) -> Result<Entry, OsdError> {
        match self.find(path).await? {
            Some(entry) => Ok(entry),
            None if path.is_empty() => Err(OsdError::wrong(
                format!("{} holds no tree of files", self.place),
                "put one there with `stag osd put -r`, or list its objects with `stag osd ls --objects`",
            )),
            None => Err(OsdError::wrong(
                format!("{}: there is no such file", self.show(path)),
                format!("what there is: stag osd ls {}", self.show(&path[..path.len() - 1])),
            )),
        }
    }

    /// The file of a name in a directory; `None` if there is none, or that is no directory. If
    /// there should be two, the newer one.
    pub async fn child(&self, directory: &Entry, name: &[u8]) -> Result<Option<Entry>, ObjectError> {
        let Some(collection) = directory.collection else { return Ok(None) };
        let query = Query::default().with(Range::exactly(NAME, name));
        let found = self.device.query(self.id(collection), &query).await?;
        match found.into_iter().max() {
            Some(object) => self.entry(object.object).await,
            None => Ok(None),
        }
    }

    /// All that is in a directory, in the order of the names.
    pub async fn children(&self, directory: &Entry) -> Result<Vec<Entry>, ObjectError> {
        let Some(collection) = directory.collection else { return Ok(Vec::new()) };
        let mut list = self.device.members(self.id(collection)).with(LISTED);
        let mut children = Vec::new();
        loop {
            let some = list.some().await?;
            if some.is_empty() {
                break;
            }
            children.extend(some.iter().filter_map(layout::entry));
        }
        // Of two objects with one name the newer one counts; the older one is about to be removed.
        children.sort_by(|a, b| a.name.cmp(&b.name).then(b.id.cmp(&a.id)));
        children.dedup_by(|a, b| a.name == b.name);
        Ok(children)
    }

    /// The attributes that make an object the file `name` of a directory; none for the top, and for
    /// files that only links name.
    pub fn place_in(&self, collection: Option<u64>, name: &[u8]) -> Vec<Attribute> {
        let mut set: Vec<Attribute> =
            collection.map(|collection| member(1, collection)).into_iter().collect();
        if !name.is_empty() {
            set.push(Attribute::new(NAME, name));
        }
        set
    }

    /// Makes a directory. It appears whole: its collection is made first.
    pub async fn make_directory(
        &self,
        parent: Option<u64>,
        name: &[u8],
        meta: &Meta,
    ) -> Result<Entry, ObjectError> {
        let collection = self.device.create_collection(self.partition, New::default()).await?;
        let mut new = New { attributes: layout::attributes(meta), ..New::default() };
        new.attributes.push(Attribute::number(layout::COLLECTION, collection.object));
        new.attributes.extend(self.place_in(parent, name));
        let made = self.device.create(self.partition, new).await;
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                // The first error is the one to report.
                let _ = self.device.remove_collection(collection, true).await;
                return Err(error);
            }
        };
        Ok(Entry {
            id: id.object,
            name: name.to_vec(),
            meta: meta.clone(),
            has_xattrs: !meta.xattrs.is_empty(),
            collection: Some(collection.object),
            link: None,
        })
    }

    /// Makes a name of a file that has several.
    pub async fn make_link(&self, parent: u64, name: &[u8], object: u64) -> Result<Id, ObjectError> {
        let mut new = New::default().set(Attribute::new(KIND, [Kind::Link as u8]));
        new.attributes.push(Attribute::number(LINK, object));
        new.attributes.extend(self.place_in(Some(parent), name));
        self.device.create(self.partition, new).await
    }

    /// Number of links that name an object, counted up to two.
    pub async fn names_of(&self, object: u64) -> Result<usize, ObjectError> {
        let query = Query::default().with(Range::exactly(LINK, object.to_be_bytes()));
        Ok(self.device.query(Id::partition(self.partition), &query).await?.len().min(2))
    }

    /// Marks an object as complete, and sets `place` with that.
    ///
    /// # Errors
    /// The device's, about `at`; and that the object was taken for one that was left behind: it is
    /// gone, or about to go.
    pub async fn finish(
        &self,
        id: Id,
        place: impl IntoIterator<Item = Attribute>,
        at: impl std::fmt::Display,
    ) -> Result<(), OsdError> {
        let set = Operation::new(Command::SetAttributes(id)).set_all(place).set_all([layout::finished()]);
        let set = set.get([layout::LEFT_BEHIND]);
        let place = at.to_string();
        match self.device.run(set).await {
            Ok(reply) if reply.value(layout::LEFT_BEHIND).is_none() => Ok(()),
            Ok(_) => {
                let what = "stag osd rm --unfinished removes it; put it again, and give --hours more than your \
                            longest put";
                Err(OsdError::Io { place, error: std::io::Error::other(what) })
            }
            Err(error) => Err(OsdError::Object { place, error }),
        }
    }

    /// Removes a file that is no directory, and with the last link its object.
    pub async fn remove_file(&self, entry: &Entry) -> Result<(), ObjectError> {
        self.device.remove(self.id(entry.id)).await?;
        if let (Kind::Link, Some(object)) = (entry.meta.kind, entry.link)
            && self.names_of(object).await? == 0
        {
            match self.device.remove(self.id(object)).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a directory that is empty.
    pub async fn remove_directory(&self, entry: &Entry) -> Result<(), ObjectError> {
        if let Some(collection) = entry.collection {
            match self.device.remove_collection(self.id(collection), false).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        self.device.remove(self.id(entry.id)).await
    }

    /// Extended attributes of a file.
    pub async fn xattrs(&self, entry: &Entry) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ObjectError> {
        if !entry.has_xattrs {
            return Ok(Vec::new());
        }
        let all = osd::AttributeId::new(layout::XATTRS, osd::AttributeId::ALL);
        let operation = Operation::new(Command::GetAttributes(self.id(entry.id))).get([all]);
        Ok(layout::xattrs(&self.device.run(operation).await?.attributes))
    }
}

/// Properties of a new directory of this process's user, mode 0755.
fn new_directory() -> Meta {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = super::local::Time { s: i64::try_from(now.as_secs()).unwrap_or(0), ns: now.subsec_nanos() };
    Meta {
        kind: Kind::Directory,
        mode: 0o755,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mtime: now,
        atime: now,
        size: 0,
        device: (0, 0),
        target: None,
        xattrs: Vec::new(),
        shared: None,
    }
}
