//! The operations on the data of regular files.

use runtime::Chain;
use tree::{
    Attributes, Before, Caller, Changed, Committed, Contents, NodeId, Read, Stability, TreeError, Written,
};

use crate::attributes::drop_privileges;
use crate::data::Data;
use crate::directory::Key;
use crate::node::{Body, Node};
use crate::state::{FILE_SIZE, State, now};

/// Bytes that are copied while a file is locked.
const PIECE: usize = 256 << 10;
/// Bytes that one copy copies at most.
const COPY: u64 = 16 << 20;

/// Its data.
fn data(node: &mut Node) -> Result<&mut Data, TreeError> {
    match &mut node.body {
        Body::Regular(data) => Ok(data),
        Body::Directory(_) => Err(TreeError::IsDirectory),
        _ => Err(TreeError::Invalid),
    }
}

/// Its data, if the caller may change it, and its attributes before the change.
fn data_to_write<'a>(caller: &Caller, node: &'a mut Node) -> Result<(&'a mut Data, Before), TreeError> {
    let file = node.attributes();
    let data = data(node)?;
    if caller.may_write_data(&file) { Ok((data, Before::from(&file))) } else { Err(TreeError::Access) }
}

/// Its data, if the caller may read it, and its attributes.
fn data_to_read<'a>(caller: &Caller, node: &'a mut Node) -> Result<(&'a mut Data, Attributes), TreeError> {
    let file = node.attributes();
    let data = data(node)?;
    if caller.may_read_data(&file) { Ok((data, file)) } else { Err(TreeError::Access) }
}

/// The end of a range.
///
/// # Errors
/// [`TreeError::FileTooLarge`].
fn end(at: u64, len: u64) -> Result<u64, TreeError> {
    at.checked_add(len).filter(|end| *end <= FILE_SIZE).ok_or(TreeError::FileTooLarge)
}

pub(crate) fn read(
    state: &State,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    len: usize,
) -> Result<Read, TreeError> {
    let key = state.key(id)?;
    let mut node = state.table.lock(key)?;
    let (_, mut attributes) = data_to_read(caller, &mut node)?;
    state.note_read(&mut node);
    attributes.atime = node.atime;
    let data = data(&mut node)?;
    let read = data.read(&state.arena, key.slot, at, len);
    let eof = at.saturating_add(read.len() as u64) >= data.size();
    Ok(Read { data: read, eof, attributes })
}

pub(crate) fn write(
    state: &State,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    mut chain: Chain,
) -> Result<Written, TreeError> {
    let key = state.key(id)?;
    let len = chain.len();
    let mut done = 0;
    let mut first = None;
    // The change attribute after the last piece: the answer's `before` is valid only without other
    // changes.
    let mut last_change = None;
    loop {
        let mut node = state.table.lock(key)?;
        let before = node.before();
        if done == 0 {
            data_to_write(caller, &mut node)?;
            end(at, len as u64)?;
        }
        if len == 0 {
            let file = node.changed(before);
            return Ok(Written { len, stability: Stability::File, verifier: state.verifier, file });
        }
        if last_change.is_some_and(|change| change != before.change) {
            first = None;
        } else if done == 0 {
            first = Some(before);
        }
        let data = data(&mut node)?;
        // All pages at once, so that it is done whole or not at all.
        let (from, rest) = (at + done as u64, (len - done) as u64);
        match state.reserve(data.missing(from, rest)) {
            Ok(()) => {}
            // Another operation has cut the file since the first piece, and there is no space any
            // more.
            Err(_) if done > 0 => {
                let file = Changed { before: None, after: node.attributes() };
                return Ok(Written { len: done, stability: Stability::File, verifier: state.verifier, file });
            }
            Err(error) => return Err(error),
        }
        let cost = data.cost();
        let piece = chain.split_to(chain.len().min(PIECE));
        data.map(&state.arena, from, rest, piece.len() as u64);
        data.write(&state.arena, from, &piece);
        state.recount(cost, data.cost());
        done += piece.len();
        if caller.uid != 0 {
            drop_privileges(&mut node);
        }
        node.touch_data(now());
        last_change = Some(node.change);
        if chain.is_empty() {
            let file = Changed { before: first, after: node.attributes() };
            return Ok(Written { len: done, stability: Stability::File, verifier: state.verifier, file });
        }
    }
}

pub(crate) fn commit(state: &State, caller: &Caller, id: &NodeId) -> Result<Committed, TreeError> {
    let mut node = state.lock(id)?;
    let (_, before) = data_to_write(caller, &mut node)?;
    Ok(Committed { verifier: state.verifier, file: node.changed(before) })
}

pub(crate) fn allocate(
    state: &State,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    len: u64,
) -> Result<Changed, TreeError> {
    let key = state.key(id)?;
    let mut node = state.table.lock(key)?;
    let (data, before) = data_to_write(caller, &mut node)?;
    let end = end(at, len)?;
    state.reserve(data.missing(at, len))?;
    let cost = data.cost();
    data.map(&state.arena, at, len, 0);
    if end > data.size() && len > 0 {
        data.set_size(&state.arena, key.slot, end);
    }
    state.recount(cost, data.cost());
    changed(caller, &mut node, before)
}

pub(crate) fn deallocate(
    state: &State,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    len: u64,
) -> Result<Changed, TreeError> {
    let key = state.key(id)?;
    let mut node = state.table.lock(key)?;
    let (data, before) = data_to_write(caller, &mut node)?;
    let end = at.saturating_add(len).min(data.size());
    if at < end {
        let cost = data.cost();
        // Bytes beyond the end of the file read as zeros anyway.
        let end = if end == data.size() { end.next_multiple_of(crate::pages::PAGE) } else { end };
        data.erase(&state.arena, key.slot, at, end);
        state.recount(cost, data.cost());
    }
    changed(caller, &mut node, before)
}

/// The caller has changed the data.
fn changed(caller: &Caller, node: &mut Node, before: Before) -> Result<Changed, TreeError> {
    if caller.uid != 0 {
        drop_privileges(node);
    }
    node.touch_data(now());
    Ok(node.changed(before))
}

pub(crate) fn seek(
    state: &State,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    contents: Contents,
) -> Result<u64, TreeError> {
    let mut node = state.lock(id)?;
    let (data, _) = data_to_read(caller, &mut node)?;
    data.seek(at, contents).ok_or(TreeError::NoEntry)
}

pub(crate) fn copy(
    state: &State,
    caller: &Caller,
    from: (&NodeId, u64),
    to: (&NodeId, u64),
    len: u64,
) -> Result<u64, TreeError> {
    let (source, target) = (state.key(from.0)?, state.key(to.0)?);
    let mut left = {
        let mut node = state.table.lock(source)?;
        let (data, _) = data_to_read(caller, &mut node)?;
        let left = data.size().saturating_sub(from.1);
        if len == 0 { left } else { left.min(len) }
    };
    data_to_write(caller, &mut *state.table.lock(target)?)?;
    end(to.1, left)?;
    if source == target && from.1 < to.1.saturating_add(left) && to.1 < from.1.saturating_add(left) {
        return Err(TreeError::Invalid);
    }
    left = left.min(COPY);
    let mut done = 0;
    while done < left {
        let n = (left - done).min(PIECE as u64);
        match copy_piece(state, caller, (source, from.1 + done), (target, to.1 + done), n) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Copies up to `len` bytes with both files locked. Holes remain holes.
fn copy_piece(
    state: &State,
    caller: &Caller,
    (source, from): (Key, u64),
    (target, to): (Key, u64),
    len: u64,
) -> Result<u64, TreeError> {
    let mut nodes = state.table.lock_all([source, target])?;
    let (data, _) = data_to_read(caller, nodes.get(source))?;
    let is_hole = data.seek(from, Contents::Data).is_none_or(|next| next >= from + len);
    let piece = data.read(&state.arena, source.slot, from, len as usize);
    let (len, chain) = (piece.len() as u64, if is_hole { Chain::new() } else { piece });
    if len == 0 {
        return Ok(0);
    }
    let node = nodes.get(target);
    let (data, _) = data_to_write(caller, node)?;
    let cost = data.cost();
    let size = data.size().max(to + len);
    if is_hole {
        if to < data.size() {
            data.erase(&state.arena, target.slot, to, (to + len).min(data.size()));
        }
        data.set_size(&state.arena, target.slot, size);
    } else {
        state.reserve(data.missing(to, len))?;
        data.map(&state.arena, to, len, len);
        data.write(&state.arena, to, &chain);
    }
    state.recount(cost, data.cost());
    changed(caller, node, Before::from(&node.attributes()))?;
    Ok(len)
}
