//! The form in which a tree goes to the next process: its files with their ids, cookies and
//! verifier, so that clients notice nothing.
//!
//! A header, then each file: the length of its description, the description in XDR, and the pages
//! of its data. A length of 0 ends it. The tree must be idle when it is saved.

use std::io::{self, ErrorKind, Read, Write};

use rpc::xdr::{Malformed, Reader, Writer, Xdr};
use runtime::{Buf, Chain};
use tree::{Device, Kind, Time};

use crate::data::Data;
use crate::directory::{Child, Directory, Key};
use crate::node::{Body, Extended, NODE_COST, Node};
use crate::pages::PAGE;
use crate::state::{Limits, ROOT, State};

/// The first word: the format.
const FORMAT: u32 = 1;
/// Bytes of the header.
const HEADER: usize = 20;
/// Pages of data that are copied at once.
const PIECE: u64 = 256;
/// Files that are neither data nor directory nor link, by their numbers here.
const SPECIAL: [Kind; 4] = [Kind::Block, Kind::Character, Kind::Socket, Kind::Fifo];
/// Numbers of the other bodies.
const REGULAR: u32 = 4;
const DIRECTORY: u32 = 5;
const SYMLINK: u32 = 6;

pub(crate) fn save(state: &State, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    let header = &mut Writer::new(&mut bytes);
    header.u32(FORMAT);
    header.u64(state.verifier);
    header.u64(state.new_fileid());
    to.write_all(&bytes)?;
    let mut page = vec![0; (PIECE * PAGE) as usize];
    state.table.each(|slot, node| -> io::Result<()> {
        bytes.clear();
        describe(slot, node, &mut Writer::new(&mut bytes));
        to.write_all(&(bytes.len() as u64).to_be_bytes())?;
        to.write_all(&bytes)?;
        let Body::Regular(data) = &node.body else { return Ok(()) };
        for (_, run) in data.all_runs() {
            let (mut at, end) = (u64::from(run.at), u64::from(run.end()));
            while at < end {
                let pages = (end - at).min(PIECE);
                let piece = &mut page[..(pages * PAGE) as usize];
                state.arena.read(at * PAGE, piece)?;
                to.write_all(piece)?;
                at += pages;
            }
        }
        Ok(())
    })?;
    to.write_all(&0u64.to_be_bytes())
}

/// Reads what [`save`] has written.
///
/// # Errors
/// [`ErrorKind::StorageFull`]: the limits are too small for it. [`ErrorKind::InvalidData`]: it is
/// of another format. Or the reader's.
pub(crate) fn load(limits: Limits, from: &mut impl Read) -> io::Result<State> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let header = &mut Reader::new(&header);
    if header.u32().map_err(malformed)? != FORMAT {
        return Err(ErrorKind::InvalidData.into());
    }
    let (verifier, fileid) = (header.u64().map_err(malformed)?, header.u64().map_err(malformed)?);
    let state = State::empty(limits, verifier, fileid)?;
    let mut bytes = Vec::new();
    loop {
        let mut len = [0; 8];
        from.read_exact(&mut len)?;
        let len = u64::from_be_bytes(len);
        if len == 0 {
            break;
        }
        bytes.clear();
        if from.by_ref().take(len).read_to_end(&mut bytes)? as u64 != len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let Described { slot, mut node, runs } = described(&bytes).map_err(malformed)?;
        // There have never been more files than fit.
        if u64::from(slot) > limits.bytes / NODE_COST {
            return Err(ErrorKind::StorageFull.into());
        }
        if let Body::Regular(data) = &mut node.body {
            load_data(&state, data, &runs, from)?;
        }
        if !state.bytes.take(node.cost()) || !state.files.take(1) {
            return Err(ErrorKind::StorageFull.into());
        }
        state.table.insert_at(slot, Box::new(node)).map_err(|_| ErrorKind::OutOfMemory)?;
    }
    state.table.find_free();
    state.table.lock(ROOT).map_err(|_| ErrorKind::InvalidData)?;
    Ok(state)
}

/// The pages of a file's runs.
fn load_data(state: &State, data: &mut Data, runs: &[(u64, u32)], from: &mut impl Read) -> io::Result<()> {
    for (page, pages) in runs {
        let (mut page, mut left) = (*page, u64::from(*pages));
        while left > 0 {
            let len = left.min(PIECE) * PAGE;
            let at = page.checked_mul(PAGE).filter(|at| at.checked_add(len).is_some());
            let at = at.ok_or(ErrorKind::InvalidData)?;
            let mut piece = vec![0; len as usize];
            from.read_exact(&mut piece)?;
            if !state.bytes.take(data.missing(at, len)) {
                return Err(ErrorKind::StorageFull.into());
            }
            let mut chain = Chain::new();
            chain.push(Buf::from(piece));
            data.restore(&state.arena, at, &chain);
            (page, left) = (page + len / PAGE, left - len / PAGE);
        }
    }
    Ok(())
}

fn malformed(error: Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

fn opaque(bytes: &[u8], to: &mut Writer<'_>) {
    to.u32(bytes.len() as u32);
    to.fixed(bytes);
}

fn describe(slot: u32, node: &Node, to: &mut Writer<'_>) {
    to.u32(slot);
    to.u64(node.fileid);
    for word in [node.mode, node.uid, node.gid, node.links] {
        to.u32(word);
    }
    to.u64(node.change);
    for time in [node.atime, node.mtime, node.ctime, node.created] {
        time.seconds.write(to);
        to.u32(time.nanoseconds);
    }
    node.exclusive.write(to);
    to.u32(node.extended.as_ref().map_or(0, |all| all.len()) as u32);
    for (name, value) in node.extended.iter().flat_map(|all| all.iter()) {
        opaque(name, to);
        opaque(value, to);
    }
    match &node.body {
        Body::Regular(data) => {
            to.u32(REGULAR);
            to.u64(data.size());
            to.u32(data.all_runs().count() as u32);
            for (page, run) in data.all_runs() {
                to.u64(page);
                to.u32(run.len);
            }
        }
        Body::Directory(entries) => {
            to.u32(DIRECTORY);
            to.u32(entries.parent.slot);
            to.u64(entries.parent.fileid);
            to.u64(entries.next());
            to.u32(entries.len() as u32);
            for (cookie, name, child) in entries.behind(0) {
                to.u64(cookie);
                opaque(name, to);
                to.u32(child.key.slot);
                to.u64(child.key.fileid);
                to.bool(child.is_directory);
            }
        }
        Body::Symlink(path) => {
            to.u32(SYMLINK);
            opaque(path, to);
        }
        Body::Special(kind, device) => {
            to.u32(SPECIAL.iter().position(|one| one == kind).unwrap_or_default() as u32);
            to.u32(device.major);
            to.u32(device.minor);
        }
    }
}

/// A file that is described.
struct Described {
    slot: u32,
    node: Node,
    /// Of its data: the first page of each, and how many.
    runs: Vec<(u64, u32)>,
}

fn described(bytes: &[u8]) -> Result<Described, Malformed> {
    let from = &mut Reader::new(bytes);
    let all = bytes.len();
    let time = |from: &mut Reader<'_>| Ok(Time { seconds: i64::read(from)?, nanoseconds: from.u32()? });
    let slot = from.u32()?;
    let mut runs = Vec::new();
    let mut node = Node {
        fileid: from.u64()?,
        mode: from.u32()?,
        uid: from.u32()?,
        gid: from.u32()?,
        links: from.u32()?,
        change: from.u64()?,
        atime: time(from)?,
        mtime: time(from)?,
        ctime: time(from)?,
        created: time(from)?,
        read_on: 0,
        exclusive: Option::read(from)?,
        extended: None,
        body: Body::Special(Kind::Fifo, Device::default()),
    };
    let mut extended = Extended::new();
    for _ in 0..from.u32()? {
        let name = from.opaque(all)?.into();
        extended.insert(name, from.opaque(all)?.into());
    }
    node.extended = (!extended.is_empty()).then(|| Box::new(extended));
    let number = from.u32()?;
    node.body = match number {
        REGULAR => {
            let size = from.u64()?;
            for _ in 0..from.u32()? {
                runs.push((from.u64()?, from.u32()?));
            }
            Body::Regular(Data::zeros(size))
        }
        DIRECTORY => {
            let key = |from: &mut Reader<'_>| Ok(Key { slot: from.u32()?, fileid: from.u64()? });
            let (parent, next) = (key(from)?, from.u64()?);
            let mut entries = Directory::new(parent);
            for _ in 0..from.u32()? {
                let (cookie, name) = (from.u64()?, from.opaque(all)?);
                let child = Child { key: key(from)?, is_directory: from.bool()? };
                entries.set_at(cookie, name, child);
            }
            entries.set_next(next);
            Body::Directory(Box::new(entries))
        }
        SYMLINK => Body::Symlink(from.opaque(all)?.into()),
        number => match SPECIAL.get(number as usize) {
            Some(kind) => Body::Special(*kind, Device { major: from.u32()?, minor: from.u32()? }),
            None => return Err(Malformed::Unknown { what: "kind of file", value: number }),
        },
    };
    from.end()?;
    Ok(Described { slot, node, runs })
}
