//! The data of files: reads and writes at once where the page cache can serve them, else by the
//! ring. Owns the limits of the core's own reads and writes.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use runtime::{Chain, Patience, pool};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use smallvec::smallvec;
use tree::{
    Attributes, Caller, Changed, Committed, Contents, Kind, NodeId, Read, Stability, TreeError, Written,
};

use crate::base::{Base, Done};
use crate::node::Node;
use crate::{failed, flush, locate};

/// The longest write that a core makes itself, bytes.
const PROMPT: usize = 64 << 10;
/// The longest time of such a write. After a slower one, [`NOT_PROMPT_AFTER`] writes use the ring.
const PROMPT_FOR: Duration = Duration::from_millis(1);
const NOT_PROMPT_AFTER: u32 = 256;
/// A longer read first checks the file's size, bytes.
const LONG: usize = 64 << 10;
/// Most bytes of one copy.
const COPIED: u64 = 16 << 20;

/// Reads from the page cache. `None` if the medium has to be read.
pub(crate) fn read_at_once(
    base: &Base,
    caller: &Caller,
    node: &Node,
    at: u64,
    len: usize,
) -> Option<Result<Read, TreeError>> {
    // Such offsets are an error of the call, and no property of the file system.
    at.checked_add(len as u64).and_then(|end| i64::try_from(end).ok())?;
    let patience = match base.in_memory {
        true => Patience::Wait,
        false if base.patience.reads.load(Ordering::Relaxed) => return None,
        false => Patience::None,
    };
    let reader = match node.reader(&base.descriptors) {
        Ok(reader) => reader,
        Err(error) => return Some(Err(error)),
    };
    let mut len = len;
    if len > LONG {
        let size = match base.attributes(node) {
            Ok(file) => file.size,
            Err(error) => return Some(Err(error)),
        };
        len = len.min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
    }
    let mut data = Chain::new();
    let mut ended = false;
    while data.len() < len && !ended {
        let piece = (len - data.len()).min(pool::MAX_ALLOC);
        let mut buf = pool::alloc(piece)?;
        match reader.read_now(&mut buf, at + data.len() as u64, patience) {
            Ok(read) => {
                ended = read < piece;
                buf.truncate(read);
                data.push(buf.freeze());
            }
            Err(error) => {
                if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) {
                    base.patience.reads.store(true, Ordering::Relaxed);
                }
                // The caller reads through the ring instead, which reports any error.
                return None;
            }
        }
    }
    let end = at.saturating_add(data.len() as u64);
    let file = match base.attributes_in_batch(node) {
        // It has grown since.
        Ok(file) if file.size < end => base.attributes(node),
        other => other,
    };
    let file = match file.and_then(|file| readable(base, caller, node, file)) {
        Ok(file) => file,
        Err(error) => return Some(Err(error)),
    };
    let eof = end >= file.size;
    if ended && !eof {
        return None;
    }
    Some(Ok(Read { data, eof, attributes: file }))
}

/// A file's attributes, if the caller may read its data.
fn readable(base: &Base, caller: &Caller, node: &Node, file: Attributes) -> Result<Attributes, TreeError> {
    base.permit.check_read(caller, node, &file)?;
    Ok(file)
}

/// The open file.
async fn find(base: &Arc<Base>, id: NodeId) -> Result<Arc<Node>, TreeError> {
    if let Some(node) = base.cached(&id) {
        return Ok(node);
    }
    let base = Arc::clone(base);
    runtime::blocking(move || locate::find(&base, &id)).await
}

/// Reads.
pub(crate) async fn read(
    base: Arc<Base>,
    caller: Caller,
    id: NodeId,
    at: u64,
    len: usize,
) -> Result<Read, TreeError> {
    let node = find(&base, id).await?;
    let reader = node.reader(&base.descriptors)?;
    let size = readable(&base, &caller, &node, base.attributes(&node)?)?.size;
    let len = len.min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
    let mut data = Chain::new();
    while data.len() < len {
        let piece = (len - data.len()).min(pool::MAX_ALLOC);
        let buf = pool::alloc_wait(piece).await;
        let (read, mut buf) = reader.read_at(buf, at + data.len() as u64).await;
        let read = read?;
        buf.truncate(read);
        data.push(buf.freeze());
        if read < piece {
            break;
        }
    }
    let attributes = base.attributes(&node)?;
    let eof = at.saturating_add(data.len() as u64) >= attributes.size;
    Ok(Read { data, eof, attributes })
}

/// A file's attributes, if the caller may write `len` bytes at `at`.
fn writable(base: &Base, caller: &Caller, node: &Node, at: u64, len: usize) -> Result<Attributes, TreeError> {
    let file = base.attributes(node)?;
    base.permit.check_write(caller, node, &file)?;
    let end = at.checked_add(len as u64).and_then(|end| i64::try_from(end).ok());
    if end.is_none() { Err(TreeError::FileTooLarge) } else { Ok(file) }
}

/// Writes to the page cache. `None` if the ring should do it.
pub(crate) fn write_at_once(
    base: &Base,
    caller: &Caller,
    node: &Node,
    at: u64,
    data: &Chain,
    stability: Stability,
) -> Option<Result<Written, TreeError>> {
    let not_prompt = &base.patience.not_prompt;
    if !base.in_memory {
        if data.len() > PROMPT {
            return None;
        }
        let left = not_prompt.load(Ordering::Relaxed);
        if left > 0 {
            // Lost updates are harmless.
            not_prompt.store(left - 1, Ordering::Relaxed);
            return None;
        }
    }
    let begin = Instant::now();
    let done = write_promptly(base, caller, node, at, data, stability);
    if begin.elapsed() > PROMPT_FOR {
        not_prompt.store(NOT_PROMPT_AFTER, Ordering::Relaxed);
    }
    Some(done.map_err(|error| base.durability.report(error, true)))
}

fn write_promptly(
    base: &Base,
    caller: &Caller,
    node: &Node,
    at: u64,
    data: &Chain,
    stability: Stability,
) -> Result<Written, TreeError> {
    let writer = node.writer(&base.descriptors)?;
    let before = writable(base, caller, node, at, data.len())?.ctime;
    let verifier = base.durability.verifier();
    let mut rest = data.clone();
    let acting = base.permit.act(caller)?;
    while !rest.is_empty() {
        let to = at + (data.len() - rest.len()) as u64;
        match writer.write_now(&rest, to, false, Patience::Wait) {
            Ok(0) => break,
            Ok(n) => rest.advance(n.min(rest.len())),
            // The bytes written before the error stay written.
            Err(_) if rest.len() < data.len() => break,
            Err(error) => return Err(error.into()),
        }
    }
    drop(acting);
    node.wrote();
    Ok(Written { len: data.len() - rest.len(), stability, verifier, file: base.changed(node, before)? })
}

/// Writes.
pub(crate) async fn write(
    base: Arc<Base>,
    caller: Caller,
    id: NodeId,
    at: u64,
    data: Chain,
    stability: Stability,
) -> Result<Written, TreeError> {
    let failed = |error| base.durability.report(error, true);
    let node = find(&base, id).await.map_err(failed)?;
    let failures = base.durability.failures();
    let written = match write_at_once(&base, &caller, &node, at, &data, stability) {
        Some(written) => written?,
        None => write_by_ring(&base, &caller, &node, at, data, stability).await.map_err(failed)?,
    };
    if stability > Stability::Unstable {
        flush::kept(&base, &node, stability == Stability::File, failures).await?;
    }
    Ok(written)
}

async fn write_by_ring(
    base: &Base,
    caller: &Caller,
    node: &Node,
    at: u64,
    data: Chain,
    stability: Stability,
) -> Result<Written, TreeError> {
    let writer = node.writer(&base.descriptors)?;
    let before = writable(base, caller, node, at, data.len())?.ctime;
    let verifier = base.durability.verifier();
    let len = data.len();
    let written = acting(base, caller, writer.write_at(data, at, false)).await?;
    node.wrote();
    written?;
    Ok(Written { len, stability, verifier, file: base.changed(node, before)? })
}

/// Runs `operation` on the ring with the caller's credentials, which the kernel keeps for it.
async fn acting<T>(
    base: &Base,
    caller: &Caller,
    operation: impl Future<Output = io::Result<T>>,
) -> Result<io::Result<T>, TreeError> {
    let mut operation = pin!(operation);
    poll_fn(|cx| {
        // Submit operations that others have queued before changing credentials.
        runtime::submit();
        let acting = match base.permit.act(caller) {
            Ok(acting) => acting,
            Err(error) => return std::task::Poll::Ready(Err(error)),
        };
        let polled = operation.as_mut().poll(cx).map(Ok);
        if acting.is_some() {
            runtime::submit();
        }
        polled
    })
    .await
}

/// Makes all written data durable.
pub(crate) async fn commit(base: Arc<Base>, id: NodeId) -> Result<Committed, TreeError> {
    let failed = |error| base.durability.report(error, false);
    let node = find(&base, id).await.map_err(failed)?;
    regular(&node)?;
    if base.durability.is_asynchronous() {
        // The system writes it back at a time of its own.
        node.settle(node.written());
    } else if node.is_dirty() {
        flush::flushed(&base, &node, true).await?;
    }
    let verifier = base.durability.verifier();
    let after = base.attributes(&node).map_err(failed)?;
    Ok(Committed { verifier, file: Changed { before: None, after } })
}

fn regular(node: &Node) -> Result<(), TreeError> {
    match node.kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(TreeError::IsDirectory),
        _ => Err(TreeError::Invalid),
    }
}

/// Reserves space, or gives it back.
pub(crate) fn allocate(
    base: &Arc<Base>,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    len: u64,
    reserve: bool,
) -> Done<Changed> {
    let node = locate::find(base, id)?;
    let writer = node.writer(&base.descriptors)?;
    let len_here = usize::try_from(len).unwrap_or(usize::MAX);
    let before = match writable(base, caller, &node, at, len_here) {
        // A hole may reach to the end of all files.
        Err(TreeError::FileTooLarge) if !reserve => base.attributes(&node)?,
        other => other?,
    };
    let len = len.min((i64::MAX as u64).saturating_sub(at));
    if len > 0 {
        let flags = match reserve {
            true => FallocateFlags::empty(),
            false => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        let acting = base.permit.act(caller)?;
        rustix::fs::fallocate(&*writer, flags, at, len).map_err(failed)?;
        drop(acting);
        node.wrote();
    }
    drop(writer);
    Ok((base.changed(&node, before.ctime)?, smallvec![node]))
}

/// Finds data, or a hole.
pub(crate) fn seek(
    base: &Arc<Base>,
    caller: &Caller,
    id: &NodeId,
    at: u64,
    contents: Contents,
) -> Result<u64, TreeError> {
    let node = locate::find(base, id)?;
    let reader = node.reader(&base.descriptors)?;
    readable(base, caller, &node, base.attributes(&node)?)?;
    if i64::try_from(at).is_err() {
        return Err(TreeError::NoEntry);
    }
    // This moves the file's position, which no other code uses.
    let to = match contents {
        Contents::Data => SeekFrom::Data(at),
        Contents::Hole => SeekFrom::Hole(at),
    };
    rustix::fs::seek(reader, to).map_err(|error| match error {
        Errno::NXIO => TreeError::NoEntry,
        _ => failed(error),
    })
}

/// Copies within the file system, or shares blocks.
pub(crate) fn copy(
    base: &Arc<Base>,
    caller: &Caller,
    from: (NodeId, u64),
    to: (NodeId, u64),
    len: u64,
    share: bool,
) -> Done<u64> {
    let source = locate::find(base, &from.0)?;
    let reader = source.reader(&base.descriptors)?;
    let there = readable(base, caller, &source, base.attributes(&source)?)?.size.saturating_sub(from.1);
    let target = locate::find(base, &to.0)?;
    let writer = target.writer(&base.descriptors)?;
    // Without sharing, as many bytes are asked for as there may be: to the end of the source.
    let len = match len {
        0 => there,
        _ if share => len,
        _ => len.min(there),
    };
    let before = writable(base, caller, &target, to.1, usize::try_from(len).unwrap_or(usize::MAX))?.ctime;
    let acting = base.permit.act(caller)?;
    let mut copied = 0;
    if share {
        // 0 would mean all bytes that exist by then.
        if len > 0 {
            writer.share_range_now(reader, from.1, to.1, len)?;
        }
        copied = len;
    }
    let len = len.min(COPIED);
    while !share && copied < len {
        let (mut at, mut into) = (from.1 + copied, to.1 + copied);
        let piece = usize::try_from(len - copied).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(reader, Some(&mut at), &*writer, Some(&mut into), piece) {
            Ok(0) => break,
            Ok(n) => copied += n as u64,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(failed(error)),
        }
    }
    drop(acting);
    drop(writer);
    target.wrote();
    base.changed(&target, before)?;
    Ok((copied, smallvec![target]))
}
