//! The operations on names: of the exports' directories, and of those above them.

use nfs::v4::attribute::RDATTR_ERROR;
use nfs::v4::readdir::{Entry, Listing};
use nfs::v4::{
    Attributes, Bitmap, Create, CreateOk, CreateType, Fattr, Name, Operation, Outcome, ReadDir, Rename,
    Renamed, Results, SecInfo, SecInfoStyle, Status, Verifier,
};
use rpc::auth::Flavor;
use rpc::xdr::List;
use server_core::audit::{self, Who};
use tree::{DirRoom, Kind, New, RemovedKind, TreeError};

use super::attributes::{self, Known};
use super::compound::{Compound, Done, Failed, Place, Results as Reply, checked, in_export, writable};
use super::convert;
use crate::file::File;
use crate::pseudo::ROOT;

/// Bytes of a directory's entries that one reply holds at most.
const MOST_ENTRIES: usize = 256 << 10;
/// Bytes of a reply to READDIR that are no entries: the verifier, and the end.
const AROUND: usize = 8 + 8;
/// Bytes of an entry beside its name and the values of its attributes.
const ENTRY: usize = 4 + 8 + 4 + 16 + 4;

/// Finds the object of a name in a directory.
pub(super) async fn find(c: &Compound<'_>, directory: &Place, name: &[u8]) -> Result<Place, Status> {
    let above = match directory {
        Place::Above(node) => Some(*node),
        Place::File(file) => c.mounted(file),
    };
    if let Some(child) = above.and_then(|node| c.model.pseudo.child(node, name)) {
        return enter(c, child);
    }
    let file = in_export(directory, Status::NoEnt)?;
    match file.tree().lookup(&file.caller, &file.node, name).await {
        Ok(found) => Ok(Place::File(file.beside(found.node))),
        Err(TreeError::NotDirectory) if file.now().await?.kind == Kind::Symlink => Err(Status::Symlink),
        Err(error) => file.done(Err(error)),
    }
}

/// The place at a node of the pseudo file system, which the client looks up. The log tells who came
/// to an export, and who was refused.
fn enter(c: &Compound<'_>, node: usize) -> Result<Place, Status> {
    let place = c.at(node);
    let Some(export) = c.model.pseudo.nodes[node].export else { return place };
    let name = &c.model.exports[export].config.name;
    let (of, shared) = (&c.client, &c.client.shared);
    if place.is_ok() {
        shared.mounts.used(of.peer.ip().to_canonical(), name.as_bytes());
    } else {
        let target = Some(name.escape_default().to_string());
        let why = "the export is not for this client";
        audit::refused(&shared.hub, of.peer, &Who { target, ..Who::default() }, &why);
    }
    place
}

/// The directory of the current one.
async fn parent(c: &Compound<'_>) -> Result<Place, Status> {
    let above = match c.current()? {
        Place::Above(node) => Some(*node),
        Place::File(file) => c.mounted(file),
    };
    match above {
        Some(ROOT) => Err(Status::NoEnt),
        Some(node) => c.at(c.model.pseudo.nodes[node].parent),
        None => find(c, c.current()?, b"..").await,
    }
}

pub(super) async fn lookup(c: &mut Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    let found = find(c, c.current()?, checked(name)?).await?;
    c.go_to(found);
    to.push(&Results::Lookup(Outcome::Ok(())));
    Ok(())
}

pub(super) async fn lookup_parent(c: &mut Compound<'_>, to: &mut Reply<'_, '_>) -> Done {
    let found = parent(c).await?;
    c.go_to(found);
    to.push(&Results::LookupP(Outcome::Ok(())));
    Ok(())
}

/// The flavors that are served.
const FLAVORS: [SecInfo<'static>; 2] =
    [SecInfo::Flavor(Flavor::Sys as u32), SecInfo::Flavor(Flavor::None as u32)];

/// SECINFO. It takes the current file away (RFC 8881 §2.6.3.1.1.8).
pub(super) async fn security(c: &mut Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    find(c, c.current()?, checked(name)?).await?;
    c.current = None;
    to.push(&Results::SecInfo(Outcome::Ok(List::of(&FLAVORS))));
    Ok(())
}

pub(super) async fn security_here(c: &mut Compound<'_>, of: SecInfoStyle, to: &mut Reply<'_, '_>) -> Done {
    if of == SecInfoStyle::Parent {
        parent(c).await?;
    }
    c.current = None;
    to.push(&Results::SecInfoNoName(Outcome::Ok(List::of(&FLAVORS))));
    Ok(())
}

/// Checks that a name of an export's directory may change: it is not where another export is.
pub(super) fn changeable(c: &Compound<'_>, directory: &File, name: &[u8]) -> Result<(), Status> {
    let here = c.mounted(directory).and_then(|node| c.model.pseudo.child(node, name));
    if here.is_some() { Err(Status::XDev) } else { Ok(()) }
}

pub(super) async fn create(c: &mut Compound<'_>, what: &Create<'_>, to: &mut Reply<'_, '_>) -> Done {
    let directory = c.writable()?;
    let name = checked(what.name)?;
    changeable(c, directory, name)?;
    let set = attributes::to_set(&what.attributes, c.minor)?;
    let device = |of: nfs::v4::Device| tree::Device { major: of.major, minor: of.minor };
    let none = tree::Device::default();
    let new = match what.kind {
        CreateType::Directory(()) => New::Directory(set),
        CreateType::Symlink(path) => New::Symlink(path.bytes(), set),
        CreateType::Block(of) => New::Special(Kind::Block, device(of), set),
        CreateType::Character(of) => New::Special(Kind::Character, device(of), set),
        CreateType::Socket(()) => New::Special(Kind::Socket, none, set),
        CreateType::Fifo(()) => New::Special(Kind::Fifo, none, set),
        CreateType::Regular(()) | CreateType::AttrDir(()) | CreateType::NamedAttr(()) => {
            return Err(Status::BadType.into());
        }
    };
    let created = directory.tree().create(&directory.caller, &directory.node, name, new).await;
    let created = directory.done(created)?;
    let made =
        CreateOk { directory: convert::changed(&created.directory), attributes_set: what.attributes.set() };
    let place = Place::File(directory.beside(created.node));
    c.go_to(place);
    to.push(&Results::Create(Outcome::Ok(made)));
    Ok(())
}

pub(super) async fn remove(c: &Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    let directory = c.writable()?;
    let name = checked(name)?;
    changeable(c, directory, name)?;
    let _change = c.changes().of_name(directory, name).await?;
    let removed = directory.tree().remove(&directory.caller, &directory.node, name, RemovedKind::Any).await;
    let removed = directory.done(removed)?;
    to.push(&Results::Remove(Outcome::Ok(convert::changed(&removed.directory))));
    Ok(())
}

/// The saved file, to be changed, and the current one. Both are in one export.
fn pair<'c>(c: &'c Compound<'_>) -> Result<(&'c File, &'c File), Status> {
    let saved = writable(c.saved.as_ref().ok_or(Status::NoFileHandle)?)?;
    let current = c.writable()?;
    if saved.export.id == current.export.id { Ok((saved, current)) } else { Err(Status::XDev) }
}

pub(super) async fn rename(c: &Compound<'_>, what: &Rename<'_>, to: &mut Reply<'_, '_>) -> Done {
    let (from, into) = pair(c)?;
    let (old, new) = (checked(what.from)?, checked(what.to)?);
    changeable(c, from, old)?;
    changeable(c, into, new)?;
    let _changes = (c.changes().of_name(from, old).await?, c.changes().of_name(into, new).await?);
    let renamed = from.tree().rename(&from.caller, (&from.node, old), (&into.node, new)).await;
    let renamed = from.done(renamed)?;
    let (from, into) = (convert::changed(&renamed.from), convert::changed(&renamed.to));
    to.push(&Results::Rename(Outcome::Ok(Renamed { from, to: into })));
    Ok(())
}

pub(super) async fn link(c: &Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    let (file, directory) = pair(c)?;
    let name = checked(name)?;
    changeable(c, directory, name)?;
    let _change = c.changes().of(file)?;
    let linked = file.tree().link(&file.caller, &file.node, &directory.node, name).await;
    let linked = file.done(linked)?;
    to.push(&Results::Link(Outcome::Ok(convert::changed(&linked.directory))));
    Ok(())
}

/// An entry: where the listing goes on, its name, and its attributes if it has some.
struct Found {
    cookie: u64,
    name: Vec<u8>,
    known: Option<Known>,
}

/// A part of a listing, and whether the directory ends with it.
struct Part(Vec<Found>, bool);

pub(super) async fn read_dir(c: &Compound<'_>, what: &ReadDir, to: &mut Reply<'_, '_>) -> Done {
    attributes::readable(what.requested)?;
    // Those numbers are of `.` and `..`, which have no entries.
    if matches!(what.cookie, 1 | 2) {
        return Err(Status::BadCookie.into());
    }
    // The operation's number, the status, and what may follow.
    let left = c.left(to.position() + 8).unwrap_or(0);
    let most = (what.max_count as usize).min(MOST_ENTRIES).min(left);
    let Part(entries, eof) = match c.current()? {
        Place::Above(node) => above(c, *node, what).await,
        Place::File(directory) => below(c, directory, what, most).await?,
    };
    let mut listed = Ok(());
    to.in_place(Operation::ReadDir.code(), |to| {
        let mut listing = Listing::new(to, Verifier::default(), what.dir_count, most as u32);
        let failed =
            Attributes { rdattr_error: Some(Outcome::Err(Status::NoEnt, ())), ..Attributes::default() };
        for found in &entries {
            let Ok(name) = Name::new(&found.name) else { continue };
            let of = found.known.as_ref().map(Known::attributes);
            let attributes = match &of {
                Some(of) => Fattr::new(what.requested, of),
                None => Fattr::new(what.requested.and(Bitmap::of(&[RDATTR_ERROR])), &failed),
            };
            if !listing.entry(&Entry { cookie: found.cookie, name, attributes }) {
                break;
            }
        }
        let done = listing.finish(eof).map(|_| ());
        listed = done;
        done
    });
    listed.map_err(|_| Failed::Said)
}

/// A part of a directory of an export.
async fn below(c: &Compound<'_>, directory: &File, what: &ReadDir, most: usize) -> Result<Part, Status> {
    let names = if what.dir_count == 0 { usize::MAX } else { (what.dir_count as usize).max(512) };
    let room = DirRoom {
        bytes: most.saturating_sub(AROUND),
        each: ENTRY + attributes::size(what.requested),
        names,
        nodes: !what.requested.is_empty(),
    };
    let found = directory.tree().read_dir(&directory.caller, &directory.node, what.cookie, room).await;
    let found = directory.done(found)?;
    let entry = |entry: tree::DirEntry| {
        let known = entry.node.map(|(node, of)| Known::entry(c, directory, &node, of));
        Found { cookie: entry.cookie, name: entry.name, known }
    };
    Ok(Part(found.entries.into_iter().map(entry).collect(), found.eof))
}

/// The rest of a directory above the exports. Those that are not for this client are left out.
async fn above(c: &Compound<'_>, node: usize, what: &ReadDir) -> Part {
    let mut entries = Vec::new();
    for child in &c.model.pseudo.nodes[node].children {
        // Nodes are numbered in no order that a listing could go by: their cookies are.
        let cookie = 3 + entries.len() as u64;
        let Ok(place) = c.at(*child) else { continue };
        let known = Known::now(c, &place, what.requested).await.ok();
        entries.push(Found { cookie, name: c.model.pseudo.nodes[*child].name.to_vec(), known });
    }
    entries.retain(|found| found.cookie > what.cookie);
    Part(entries, true)
}
