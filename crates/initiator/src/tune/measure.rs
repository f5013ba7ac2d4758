//! Finding out what a path is like, by a session's own traffic: pings, and loads that are bounded in time, in bytes, and in what they
//! touch. A load writes only if it is told to. Nothing is decided here.

use std::time::{Duration, Instant};

use ring::{Chain, pool};
use scsi::cdb::build::{self, Flags};

use super::plan::{Allowed, RoundTrips};
use crate::disk::Disk;
use crate::error::Error;
use crate::session::{Queue, Session, Transfer};
use crate::url::Transport;

/// A load on one unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Whether it writes. What was there is lost.
    pub write: bool,
    /// Bytes of a command, cut to what the unit takes, a whole number of its blocks.
    pub io: u32,
    /// Commands under way.
    pub depth: usize,
    /// Time before anything counts.
    pub warmup: Duration,
    /// Time that counts.
    pub time: Duration,
    /// Bytes that are moved at most, those before anything counts included.
    pub most_bytes: u64,
    /// The part of the unit that is touched, bytes from its beginning.
    pub span: u64,
}

/// What a load came to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moved {
    /// Bytes of commands that ended in the time that counts.
    pub bytes: u64,
    /// That time, seconds.
    pub seconds: f64,
    /// Of the same commands, half took no longer.
    pub p50: Duration,
    /// Commands that ended well.
    pub commands: u64,
}

impl Moved {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// Latencies that are kept of a load.
const MOST_LATENCIES: usize = 1 << 16;
/// How often a command is sent again that met a unit attention or a busy unit.
const TRIES: u8 = 16;

/// Pings the target, `count` times one after the other, but no longer than `limit` in all.
///
/// # Errors
/// Whatever ended the session; [`Error::TimedOut`] if there was no answer at all.
pub async fn round_trips(session: &Session, count: usize, limit: Duration) -> Result<RoundTrips, Error> {
    let end = ring::now() + limit;
    let mut times = Vec::with_capacity(count.min(1024));
    while times.len() < count.clamp(1, 1024) {
        let left = end.saturating_duration_since(ring::now());
        match ring::timeout(left, session.ping()).await {
            Ok(time) => times.push(time?),
            Err(_elapsed) => break,
        }
    }
    RoundTrips::of(&mut times).ok_or(Error::TimedOut("ping"))
}

/// What the session's login agreed to, and its target and unit allow. It tells all of it if everything was asked for.
pub fn allowed(session: &Session, disk: &Disk, transport: Transport) -> Allowed {
    let params = session.params();
    let iser = transport == Transport::Iser;
    Allowed {
        iser,
        connections: params.max_connections.max(1),
        max_burst: params.max_burst_length,
        first_burst: params.first_burst_length,
        initial_r2t: params.initial_r2t,
        immediate_data: params.immediate_data,
        outstanding_r2t: params.max_outstanding_r2t,
        segment: if iser {
            params.target_recv_data_segment_length
        } else {
            params.peer_max_recv_data_segment_length
        },
        window: session.window(),
        max_transfer: disk.max_transfer().saturating_mul(disk.block_len()),
        reads: session.rdma_reads().unwrap_or(1),
    }
}

/// Loads a unit by the session's queue. The session's queue depth must be no less than the load's.
///
/// # Errors
/// [`Error::Argument`] for a unit with no room for a command; whatever a command ended with.
pub async fn load(disk: &Disk, queue: &mut Queue, load: &Load) -> Result<Moved, Error> {
    let block = disk.block_len();
    let most = disk.max_transfer().saturating_mul(block).min(pool::MAX_ALLOC as u32);
    let blocks = (load.io.min(most) / block).max(1);
    let len = blocks * block;
    let places = load.span.min(disk.len()) / u64::from(len);
    if places == 0 {
        return Err(Error::Argument("the unit has no room for a command of that length"));
    }
    let depth = load.depth.clamp(1, 4096);
    let data: Chain = if load.write { noise(len as usize)? } else { Chain::new() };
    let begin = ring::now();
    let (start, end) = (begin + load.warmup, begin + load.warmup + load.time);
    let most_commands = (load.most_bytes / u64::from(len)).max(1);
    let mut sent: Vec<Option<(u64, Instant, u8)>> = vec![None; depth];
    let mut free: Vec<usize> = (0..depth).rev().collect();
    let (mut next, mut begun, mut ended) = (0u64, 0u64, Vec::new());
    let (mut moved, mut latencies) = (Moved::default(), Vec::new());
    let (mut last, mut all_bytes) = (begin, 0);
    loop {
        let now = ring::now();
        while now < end && begun < most_commands {
            let Some(slot) = free.pop() else { break };
            sent[slot] = Some((next, now, 0));
            submit(disk, queue, slot, next, blocks, load.write, &data)?;
            next = if next + 1 >= places { 0 } else { next + 1 };
            begun += 1;
        }
        queue.flush();
        if free.len() == depth {
            break;
        }
        queue.completions(&mut ended).await?;
        for completed in ended.drain(..) {
            let slot = completed.token as usize;
            let Some((place, from, tries)) = sent.get(slot).copied().flatten() else { continue };
            match completed.outcome {
                Ok(()) => {}
                Err(error) if tries < TRIES && is_passing(&error) => {
                    sent[slot] = Some((place, from, tries + 1));
                    if error.sense_key().is_none() {
                        ring::sleep(Duration::from_millis(10)).await;
                    }
                    submit(disk, queue, slot, place, blocks, load.write, &data)?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            sent[slot] = None;
            free.push(slot);
            all_bytes += u64::from(len);
            last = last.max(completed.at);
            if completed.at >= start && completed.at < end {
                moved.bytes += u64::from(len);
                moved.commands += 1;
                if latencies.len() < MOST_LATENCIES {
                    latencies.push(completed.at.saturating_duration_since(from));
                }
            }
        }
    }
    latencies.sort_unstable();
    moved.p50 = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
    moved.seconds = load.time.as_secs_f64();
    if begun >= most_commands {
        // A load that its bytes have ended was over with its last command; if that was before half of the time that counts had
        // passed, all of it counts.
        let counted = last.saturating_duration_since(start);
        match counted >= load.time / 2 {
            true => moved.seconds = counted.min(load.time).as_secs_f64(),
            false => {
                let seconds = last.saturating_duration_since(begin).as_secs_f64();
                moved = Moved { bytes: all_bytes, commands: begun, seconds, ..moved };
            }
        }
    }
    Ok(moved)
}

fn submit(
    disk: &Disk,
    queue: &mut Queue,
    slot: usize,
    place: u64,
    blocks: u32,
    write: bool,
    data: &Chain,
) -> Result<(), Error> {
    let lba = place * u64::from(blocks);
    if write {
        let cdb = build::write(lba, blocks, Flags::default());
        return queue.submit(slot as u64, disk.lun(), &cdb, Transfer::Write(data.clone()));
    }
    let cdb = build::read(lba, blocks, Flags::default());
    queue.submit(slot as u64, disk.lun(), &cdb, Transfer::Discard(blocks * disk.block_len()))
}

/// Whether the same command may well succeed when it is sent again: a unit attention, BUSY, TASK SET FULL.
fn is_passing(error: &Error) -> bool {
    let busy = matches!(error, Error::Scsi(scsi) if matches!(scsi.status, 0x08 | 0x28));
    busy || error.sense_key() == Some(scsi::SenseKey::UnitAttention)
}

/// Bytes that do not compress.
fn noise(len: usize) -> Result<Chain, Error> {
    let mut buffer = pool::alloc(len).ok_or(Error::Argument("the buffer pool is exhausted"))?;
    buffer.set_len(len);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for bytes in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes()[..bytes.len()]);
    }
    Ok(buffer.freeze().into())
}
