//! A tree that goes over to another process: its data in memory that both map, all else as a stream.
//!
//! The stream is pieces: a byte that tells which, numbers in network byte order, and for some a length
//! and so many bytes, 64 KiB at most. A node is one piece; its runs of pages, entries and extended
//! attributes follow in pieces of their own. So neither side holds more than one piece of it.
//!
//! Ids of nodes and the verifier of writes stay as they are. Nobody may use the tree meanwhile.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tree::{Device, Kind, Time};

use crate::arena::Arena;
use crate::budget::Budget;
use crate::data::Data;
use crate::directory::{Child, Directory, Key};
use crate::free::Run;
use crate::node::{Body, Node};
use crate::pages::PAGE;
use crate::state::{Limits, State};

/// The format of the stream.
const FORMAT: u32 = 1;
/// The longest run of bytes in a piece.
const LONGEST: usize = 64 << 10;

/// Which piece it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Node = 1,
    Run,
    Entry,
    Extended,
    /// The data is being moved: nothing to know.
    Wait,
    End,
}

impl Tag {
    const ALL: [Self; 6] = [Self::Node, Self::Run, Self::Entry, Self::Extended, Self::Wait, Self::End];
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a tree that is handed over: {what}"))
}

/// Writes pieces.
struct To<'w, W>(&'w mut W);

impl<W: Write> To<'_, W> {
    fn u8(&mut self, value: u8) -> io::Result<()> {
        self.0.write_all(&[value])
    }

    fn u32(&mut self, value: u32) -> io::Result<()> {
        self.0.write_all(&value.to_be_bytes())
    }

    fn u64(&mut self, value: u64) -> io::Result<()> {
        self.0.write_all(&value.to_be_bytes())
    }

    fn time(&mut self, time: Time) -> io::Result<()> {
        self.u64(time.seconds as u64)?;
        self.u32(time.nanoseconds)
    }

    fn key(&mut self, key: Key) -> io::Result<()> {
        self.u32(key.slot)?;
        self.u64(key.fileid)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > LONGEST {
            return Err(wrong("a piece is too long"));
        }
        self.u32(bytes.len() as u32)?;
        self.0.write_all(bytes)
    }

    fn tag(&mut self, tag: Tag) -> io::Result<()> {
        self.u8(tag as u8)
    }
}

/// Reads pieces.
struct From<'r, R>(&'r mut R);

impl<R: Read> From<'_, R> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u8(&mut self) -> io::Result<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> io::Result<Time> {
        Ok(Time { seconds: self.u64()? as i64, nanoseconds: self.u32()? })
    }

    fn key(&mut self) -> io::Result<Key> {
        Ok(Key { slot: self.u32()?, fileid: self.u64()? })
    }

    fn bytes(&mut self) -> io::Result<Box<[u8]>> {
        let len = self.u32()? as usize;
        if len > LONGEST {
            return Err(wrong("a piece is too long"));
        }
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    fn tag(&mut self) -> io::Result<Tag> {
        let code = self.u8()?;
        Tag::ALL.into_iter().find(|tag| *tag as u8 == code).ok_or_else(|| wrong("an unknown piece"))
    }
}

/// What a special file is, in the stream. Those with a body of their own have none.
const SPECIAL: [(u8, Kind); 4] = [(3, Kind::Block), (4, Kind::Character), (5, Kind::Socket), (6, Kind::Fifo)];

/// Writes all but the data, which goes to the shared memory.
pub(crate) fn hand_over(state: &State, to: &mut impl Write) -> io::Result<()> {
    let mut to = To(to);
    to.u32(FORMAT)?;
    to.u64(state.bytes.limit())?;
    to.u64(state.files.limit())?;
    to.u64(state.verifier)?;
    to.u64(state.next_fileid())?;
    let mut runs: Vec<Run> = Vec::new();
    for slot in 0..state.table.end() {
        state.table.visit(slot, |node| {
            if let Body::Regular(data) = &node.body {
                runs.extend(data.all_runs().map(|(_, run)| run));
            }
        });
    }
    runs.sort_unstable_by_key(|run| run.at);
    state.arena.share(&runs, || to.tag(Tag::Wait).and_then(|()| to.0.flush()))?;
    drop(runs);
    for slot in 0..state.table.end() {
        let mut done = Ok(());
        state.table.visit(slot, |node| done = write_node(&mut to, slot, node));
        done?;
    }
    to.tag(Tag::End)?;
    to.0.flush()
}

fn write_node(to: &mut To<'_, impl Write>, slot: u32, node: &Node) -> io::Result<()> {
    to.tag(Tag::Node)?;
    to.key(Key { slot, fileid: node.fileid })?;
    for number in [node.mode, node.uid, node.gid, node.links] {
        to.u32(number)?;
    }
    to.u64(node.change)?;
    for time in [node.atime, node.mtime, node.ctime, node.created] {
        to.time(time)?;
    }
    to.bytes(node.exclusive.as_ref().map_or(&[], |verifier| &verifier[..]))?;
    match &node.body {
        Body::Regular(data) => {
            to.u8(0)?;
            to.u64(data.size())?;
            to.u8(data.is_lent().into())?;
            for (page, run) in data.all_runs() {
                to.tag(Tag::Run)?;
                to.u64(page)?;
                to.u32(run.at)?;
                to.u32(run.len)?;
            }
        }
        Body::Directory(entries) => {
            to.u8(1)?;
            to.key(entries.parent)?;
            to.u64(entries.next())?;
            for (cookie, name, child) in entries.behind(0) {
                to.tag(Tag::Entry)?;
                to.u64(cookie)?;
                to.key(child.key)?;
                to.u8(child.is_directory.into())?;
                to.bytes(name)?;
            }
        }
        Body::Symlink(path) => {
            to.u8(2)?;
            to.bytes(path)?;
        }
        Body::Special(kind, device) => {
            let code = SPECIAL.iter().find(|(_, special)| special == kind).map(|(code, _)| *code);
            to.u8(code.ok_or_else(|| wrong("a kind of file"))?)?;
            to.u32(device.major)?;
            to.u32(device.minor)?;
        }
    }
    for (name, value) in node.extended.iter().flat_map(|all| all.iter()) {
        to.tag(Tag::Extended)?;
        to.bytes(name)?;
        to.bytes(value)?;
    }
    Ok(())
}

/// The tree that [`hand_over`] wrote, with its data in `memory`.
pub(crate) fn take_over(limits: Limits, memory: OwnedFd, from: &mut impl Read) -> io::Result<State> {
    let mut from = From(from);
    if from.u32()? != FORMAT {
        return Err(wrong("another format"));
    }
    let own = (limits.bytes.min(Arena::MOST), limits.files.min(u32::MAX.into()));
    if (from.u64()?, from.u64()?) != own {
        return Err(wrong("other limits"));
    }
    let (verifier, fileid) = (from.u64()?, from.u64()?);
    let bytes = Arc::new(Budget::new(own.0));
    let arena = Arena::of_shared(bytes.clone(), memory)?;
    let mut state = State::empty(limits, (arena, bytes), verifier, fileid);
    let mut runs: Vec<Run> = Vec::new();
    let mut open: Option<(u32, Box<Node>)> = None;
    loop {
        let tag = from.tag()?;
        if matches!(tag, Tag::Node | Tag::End)
            && let Some((slot, node)) = open.take()
        {
            insert(&mut state, slot, node)?;
        }
        match (tag, &mut open) {
            (Tag::Wait, _) => {}
            (Tag::End, _) => break,
            (Tag::Node, _) => open = Some(read_node(&mut from)?),
            (Tag::Extended, Some((_, node))) => {
                let (name, value) = (from.bytes()?, from.bytes()?);
                node.extended.get_or_insert_default().insert(name, value);
            }
            (Tag::Run, Some((_, node))) => {
                let (page, run) = (from.u64()?, Run { at: from.u32()?, len: from.u32()? });
                let Body::Regular(data) = &mut node.body else { return Err(wrong("pages of no file")) };
                if run.len == 0 || !data.restore(page, run) {
                    return Err(wrong("pages of a file"));
                }
                runs.push(run);
            }
            (Tag::Entry, Some((_, node))) => {
                let (cookie, key) = (from.u64()?, from.key()?);
                let child = Child { key, is_directory: from.u8()? != 0 };
                let Body::Directory(entries) = &mut node.body else {
                    return Err(wrong("a name in no directory"));
                };
                if !entries.restore(cookie, &from.bytes()?, child) {
                    return Err(wrong("names of a directory"));
                }
            }
            _ => return Err(wrong("a piece of no node")),
        }
    }
    runs.sort_unstable_by_key(|run| run.at);
    state.arena.restore(&runs).ok_or_else(|| wrong("pages of two files"))?;
    if !state.table.lock(state.root()).is_ok_and(|root| root.is_directory()) {
        return Err(wrong("there is no root"));
    }
    Ok(state)
}

fn insert(state: &mut State, slot: u32, node: Box<Node>) -> io::Result<()> {
    let pages = if let Body::Regular(data) = &node.body { data.allocated() } else { 0 };
    state.bytes.take_anyway(node.cost() + pages);
    state.files.take_anyway(1);
    if state.table.restore(slot, node) { Ok(()) } else { Err(wrong("a node's place")) }
}

fn read_node(from: &mut From<'_, impl Read>) -> io::Result<(u32, Box<Node>)> {
    let Key { slot, fileid } = from.key()?;
    let [mode, uid, gid, links] = [from.u32()?, from.u32()?, from.u32()?, from.u32()?];
    let change = from.u64()?;
    let [atime, mtime, ctime, created] = [from.time()?, from.time()?, from.time()?, from.time()?];
    let exclusive = from.bytes()?;
    let exclusive = (!exclusive.is_empty()).then(|| exclusive[..].try_into()).transpose();
    let body = match from.u8()? {
        0 => Body::Regular(Data::restored(from.u64()?, from.u8()? != 0)),
        1 => Body::Directory(Box::new(Directory::restored(from.key()?, from.u64()?))),
        2 => Body::Symlink(from.bytes()?),
        code => {
            let kind = SPECIAL.iter().find(|(special, _)| *special == code).map(|(_, kind)| *kind);
            let kind = kind.ok_or_else(|| wrong("a kind of file"))?;
            Body::Special(kind, Device { major: from.u32()?, minor: from.u32()? })
        }
    };
    let node = Node {
        fileid,
        mode,
        uid,
        gid,
        links,
        change,
        atime,
        mtime,
        ctime,
        created,
        read_on: 0,
        exclusive: exclusive.map_err(|_| wrong("a verifier"))?,
        extended: None,
        body,
    };
    Ok((slot, Box::new(node)))
}

const _: () = assert!(PAGE == 4096, "pages are numbered in the stream");
