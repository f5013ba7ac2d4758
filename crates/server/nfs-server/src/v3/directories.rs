//! The procedures that are about names in directories.

use nfs::v3::readdir::{Entry, EntryPlus, Listed, Listing};
use nfs::v3::{
    Create, CreateHow, Created, DirOp, Handle, Link, Linked, LookupOk, MAX_NAME, MkDir, MkNod, Name,
    NodeData, Outcome, ReadDir, ReadDirPlus, Rename, Renamed, Results, Status, Symlink, Wcc,
};
use tree::{Attributes, DirRoom, Entries, Kind, New, NewFile, NodeId, RemovedKind, TreeError};

use super::{Call, convert, failed};
use crate::file::File;
use crate::handle::Bytes;
use crate::reply::Reply;

/// Bytes of a directory's entries that one reply holds at most.
const MOST_ENTRIES: usize = 256 << 10;
/// Bytes of a reply to READDIR that are no entries: status, attributes, verifier, end.
const AROUND: usize = 4 + 88 + 8 + 8;
/// Bytes of an entry beside its name: whether it follows, file id, the name's length, cookie.
const ENTRY: usize = 4 + 8 + 4 + 8;
/// Of an entry of READDIRPLUS besides: attributes, and the longest handle.
const PLUS: usize = 88 + 8 + crate::handle::MOST.next_multiple_of(4);
/// The cookies of `.` and `..`.
const DOTS: [(u64, &[u8]); 2] = [(1, b"."), (2, b"..")];

/// Checks a name that is looked up or changed.
///
/// # Errors
/// The status for a wrong name (RFC 1813 §3.2).
fn checked(name: Name<'_>) -> Result<&[u8], Status> {
    match name.bytes() {
        [] => Err(Status::Acces),
        name if name.len() > MAX_NAME => Err(Status::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Status::Acces),
        name => Ok(name),
    }
}

/// Checks a name that is made, removed or moved: not `.` and `..` either.
fn checked_own(name: Name<'_>) -> Result<&[u8], Status> {
    match checked(name)? {
        b"." | b".." => Err(Status::Exist),
        name => Ok(name),
    }
}

pub(super) async fn lookup(call: &Call<'_>, place: DirOp<'_>) -> Reply {
    let directory = match call.file(place.directory) {
        Ok(directory) => directory,
        Err(status) => return call.reply(&Results::Lookup(Outcome::Err(status, None))),
    };
    let name = match checked(place.name) {
        Ok(name) => name,
        Err(status) => {
            return call.reply(&Results::Lookup(Outcome::Err(status, directory.attributes().await)));
        }
    };
    let outcome = match directory.tree().lookup(&directory.caller, &directory.node, name).await {
        Ok(found) => {
            let handle = call.model.handle(&directory.export, &found.node);
            return call.reply(&Results::Lookup(Outcome::Ok(LookupOk {
                object: opaque(&handle),
                attributes: Some(convert::attributes(&directory.export, &found.attributes)),
                directory: Some(convert::attributes(&directory.export, &found.directory)),
            })));
        }
        Err(error) => failed(&directory, error).await,
    };
    call.reply(&Results::Lookup(outcome))
}

fn opaque(handle: &Bytes) -> Handle<'_> {
    // Shorter than `nfs::v3::MAX_HANDLE`.
    Handle::new(handle).unwrap_or(Handle::EMPTY)
}

/// The directory in which a name is made, and the name.
fn place<'a>(call: &Call<'_>, place: &DirOp<'a>) -> Result<(File, &'a [u8]), Status> {
    let directory = call.file(place.directory)?.writable()?;
    Ok((directory, checked_own(place.name)?))
}

/// Makes a file. The results of the four procedures are the same on the wire.
async fn create(call: &Call<'_>, at: &DirOp<'_>, new: Option<New<'_>>) -> Reply {
    let (directory, name) = match place(call, at) {
        Ok(place) => place,
        Err(status) => return call.reply(&Results::Create(Outcome::Err(status, Wcc::default()))),
    };
    let Some(new) = new else {
        return call.reply(&Results::Create(Outcome::Err(Status::Inval, directory.wcc().await)));
    };
    // CREATE truncates an existing file.
    let cuts = matches!(&new, New::File(NewFile::Unchecked(set)) if set.size.is_some());
    let change = if cuts { call.change_named_data(&directory, name).await.map(Some) } else { Ok(None) };
    if let Err(status) = change {
        return call.reply(&Results::Create(Outcome::Err(status, directory.wcc().await)));
    }
    match directory.tree().create(&directory.caller, &directory.node, name, new).await {
        Ok(created) => {
            let handle = call.model.handle(&directory.export, &created.node);
            call.reply(&Results::Create(Outcome::Ok(Created {
                object: Some(opaque(&handle)),
                attributes: Some(convert::attributes(&directory.export, &created.attributes)),
                directory: convert::changed(&directory.export, &created.directory),
            })))
        }
        Err(error) => {
            directory.note(error);
            let outcome = Outcome::Err(convert::status(error), directory.wcc().await);
            call.reply(&Results::Create(outcome))
        }
    }
}

pub(super) async fn create_file(call: &Call<'_>, what: Create<'_>) -> Reply {
    let new = match &what.how {
        CreateHow::Unchecked(set) => convert::set(set).map(NewFile::Unchecked),
        CreateHow::Guarded(set) => convert::set(set).map(NewFile::Guarded),
        CreateHow::Exclusive(verifier) => {
            Some(NewFile::Exclusive { verifier: *verifier, attributes: tree::SetAttributes::default() })
        }
    };
    create(call, &what.place, new.map(New::File)).await
}

pub(super) async fn create_directory(call: &Call<'_>, what: MkDir<'_>) -> Reply {
    let new = convert::set(&what.attributes).map(New::Directory);
    create(call, &what.place, new).await
}

pub(super) async fn create_symlink(call: &Call<'_>, what: Symlink<'_>) -> Reply {
    let new = convert::set(&what.attributes).map(|set| New::Symlink(what.path.bytes(), set));
    create(call, &what.place, new).await
}

pub(super) async fn create_special(call: &Call<'_>, what: MkNod<'_>) -> Reply {
    let none = nfs::v3::Device::default();
    let (kind, device, set) = match &what.what {
        NodeData::Block(data) => (Kind::Block, data.device, &data.attributes),
        NodeData::Character(data) => (Kind::Character, data.device, &data.attributes),
        NodeData::Socket(set) => (Kind::Socket, none, set),
        NodeData::Fifo(set) => (Kind::Fifo, none, set),
        NodeData::Regular(()) | NodeData::Directory(()) | NodeData::Symlink(()) => {
            return call.reply(&Results::MkNod(Outcome::Err(Status::BadType, Wcc::default())));
        }
    };
    let device = tree::Device { major: device.major, minor: device.minor };
    let new = convert::set(set).map(|set| New::Special(kind, device, set));
    create(call, &what.place, new).await
}

pub(super) async fn remove(call: &Call<'_>, at: DirOp<'_>, kind: RemovedKind) -> Outcome<Wcc, Wcc> {
    let name = match (checked(at.name), kind) {
        // RFC 1813 §3.3.13: `.` is INVAL, and `..` is a directory with entries.
        (Ok(b"."), RemovedKind::Directory) => return Outcome::Err(Status::Inval, Wcc::default()),
        (Ok(b".."), RemovedKind::Directory) => return Outcome::Err(Status::NotEmpty, Wcc::default()),
        (Ok(b"." | b".."), _) => return Outcome::Err(Status::IsDir, Wcc::default()),
        (name, _) => name,
    };
    let (directory, name) =
        match call.file(at.directory).and_then(File::writable).and_then(|d| Ok((d, name?))) {
            Ok(place) => place,
            Err(status) => return Outcome::Err(status, Wcc::default()),
        };
    let _change = match call.change_name(&directory, name).await {
        Ok(change) => change,
        Err(status) => return Outcome::Err(status, directory.wcc().await),
    };
    match directory.tree().remove(&directory.caller, &directory.node, name, kind).await {
        Ok(removed) => Outcome::Ok(convert::changed(&directory.export, &removed.directory)),
        Err(error) => {
            directory.note(error);
            Outcome::Err(convert::status(error), directory.wcc().await)
        }
    }
}

pub(super) async fn rename(call: &Call<'_>, what: Rename<'_>) -> Reply {
    let none = || Renamed { from: Wcc::default(), to: Wcc::default() };
    let places = place(call, &what.from).and_then(|from| Ok((from, place(call, &what.to)?)));
    let ((from, name), (to, new)) = match places {
        Ok(places) => places,
        // `.` and `..` do not move (RFC 1813 §3.3.14).
        Err(Status::Exist) => return call.reply(&Results::Rename(Outcome::Err(Status::Inval, none()))),
        Err(status) => return call.reply(&Results::Rename(Outcome::Err(status, none()))),
    };
    if from.export.id != to.export.id {
        return call.reply(&Results::Rename(Outcome::Err(Status::XDev, none())));
    }
    // The file takes another name, and perhaps the place of another file.
    let (moved, replaced) = (call.change_name(&from, name).await, call.change_name(&to, new).await);
    let outcome = if let Some(status) = moved.as_ref().err().or(replaced.as_ref().err()) {
        Outcome::Err(*status, Renamed { from: from.wcc().await, to: to.wcc().await })
    } else {
        match from.tree().rename(&from.caller, (&from.node, name), (&to.node, new)).await {
            Ok(renamed) => Outcome::Ok(Renamed {
                from: convert::changed(&from.export, &renamed.from),
                to: convert::changed(&to.export, &renamed.to),
            }),
            Err(error) => {
                from.note(error);
                Outcome::Err(convert::status(error), Renamed { from: from.wcc().await, to: to.wcc().await })
            }
        }
    };
    call.reply(&Results::Rename(outcome))
}

pub(super) async fn link(call: &Call<'_>, what: Link<'_>) -> Reply {
    let none = || Linked { file: None, directory: Wcc::default() };
    let ends = call.file(what.file).and_then(|file| Ok((file, place(call, &what.link)?)));
    let (file, (directory, name)) = match ends {
        Ok(ends) => ends,
        Err(status) => return call.reply(&Results::Link(Outcome::Err(status, none()))),
    };
    if file.export.id != directory.export.id {
        return call.reply(&Results::Link(Outcome::Err(Status::XDev, none())));
    }
    let change = call.change(&file);
    let outcome = if let Err(status) = &change {
        let linked = Linked { file: file.attributes().await, directory: directory.wcc().await };
        Outcome::Err(*status, linked)
    } else {
        match file.tree().link(&file.caller, &file.node, &directory.node, name).await {
            Ok(linked) => Outcome::Ok(Linked {
                file: Some(convert::attributes(&file.export, &linked.attributes)),
                directory: convert::changed(&directory.export, &linked.directory),
            }),
            Err(error) => {
                file.note(error);
                let linked = Linked { file: file.attributes().await, directory: directory.wcc().await };
                Outcome::Err(convert::status(error), linked)
            }
        }
    };
    call.reply(&Results::Link(outcome))
}

/// Start of a listing: the entries `.` and `..`, which trees leave out.
struct Dots {
    /// Cookie of the tree after which the listing continues.
    tree_cookie: u64,
    /// Those of [`DOTS`] that come first.
    dots: &'static [(u64, &'static [u8])],
}

impl Dots {
    fn behind(cookie: u64) -> Self {
        match cookie {
            0 => Self { tree_cookie: 0, dots: &DOTS },
            1 => Self { tree_cookie: 0, dots: &DOTS[1..] },
            2 => Self { tree_cookie: 0, dots: &[] },
            other => Self { tree_cookie: other, dots: &[] },
        }
    }
}

/// The tree's entries that a reply of `bytes` holds behind `.` and `..`.
async fn entries(
    directory: &File,
    dots: &Dots,
    (bytes, names): (usize, usize),
    nodes: bool,
) -> Result<Entries, TreeError> {
    let each = if nodes { ENTRY + PLUS } else { ENTRY };
    // The first entry may exceed `dircount`.
    let names = names.max(512);
    let mut room = DirRoom { bytes: bytes.saturating_sub(AROUND), each, names, nodes };
    for (_, name) in dots.dots {
        room.take(name);
    }
    directory.tree().read_dir(&directory.caller, &directory.node, dots.tree_cookie, room).await
}

pub(super) async fn read_dir(call: &Call<'_>, what: ReadDir<'_>) -> Reply {
    let directory = match call.file(what.directory) {
        Ok(directory) => directory,
        Err(status) => return call.reply(&Results::ReadDir(Outcome::Err(status, None))),
    };
    let limit = (what.count as usize).min(MOST_ENTRIES);
    let dots = Dots::behind(what.cookie);
    let found = match entries(&directory, &dots, (limit, usize::MAX), false).await {
        Ok(found) => found,
        Err(error) => return call.reply(&Results::ReadDir(failed(&directory, error).await)),
    };
    let own = found.attributes.fileid;
    Reply::with(call.xid, |to| {
        let attributes = Some(convert::attributes(&directory.export, &found.attributes));
        let mut listing = Listing::new(to, attributes, [0; 8], limit as u32);
        let dots = dots
            .dots
            .iter()
            .map(|(cookie, name)| (*cookie, *name, if *name == b"." { own } else { found.parent }));
        let files = found.entries.iter().map(|entry| (entry.cookie, &entry.name[..], entry.fileid));
        for (cookie, name, fileid) in dots.chain(files) {
            let Ok(name) = Name::new(name) else { continue };
            if !listing.entry(&Entry { fileid, name, cookie }) {
                break;
            }
        }
        let _: Listed = listing.finish(found.eof);
    })
}

pub(super) async fn read_dir_plus(call: &Call<'_>, what: ReadDirPlus<'_>) -> Reply {
    let directory = match call.file(what.directory) {
        Ok(directory) => directory,
        Err(status) => return call.reply(&Results::ReadDirPlus(Outcome::Err(status, None))),
    };
    let limit = (what.max_count as usize).min(MOST_ENTRIES);
    let dots = Dots::behind(what.cookie);
    let found = match entries(&directory, &dots, (limit, what.dir_count as usize), true).await {
        Ok(found) => found,
        Err(error) => return call.reply(&Results::ReadDirPlus(failed(&directory, error).await)),
    };
    let own = (directory.node, found.attributes);
    Reply::with(call.xid, |to| {
        let attributes = Some(convert::attributes(&directory.export, &found.attributes));
        let mut listing = Listing::plus(to, attributes, [0; 8], what.dir_count, limit as u32);
        let dots = dots.dots.iter().map(|(cookie, name)| match *name == b"." {
            true => (*cookie, *name, own.1.fileid, Some(own)),
            false => (*cookie, *name, found.parent, None),
        });
        let files =
            found.entries.iter().map(|entry| (entry.cookie, &entry.name[..], entry.fileid, entry.node));
        for (cookie, name, fileid, node) in dots.chain(files) {
            let node: Option<(NodeId, Attributes)> = node;
            let Ok(name) = Name::new(name) else { continue };
            let handle = node.map(|(node, _)| call.model.handle(&directory.export, &node));
            let entry = EntryPlus {
                fileid,
                name,
                cookie,
                attributes: node.map(|(_, of)| convert::attributes(&directory.export, &of)),
                handle: handle.as_ref().map(opaque),
            };
            if !listing.entry_plus(&entry) {
                break;
            }
        }
        let _: Listed = listing.finish(found.eof);
    })
}
