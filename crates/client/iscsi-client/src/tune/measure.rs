//! Measures a path with a session's own traffic: pings, and loads with limits on time, bytes and
//! the touched area. A load writes only on request. Decides nothing.

use std::time::{Duration, Instant};

use runtime::{Chain, pool};
use scsi::cdb::build::{self, Flags};

use super::plan::{Allowed, RoundTrips};
use crate::disk::Disk;
use crate::error::Error;
use crate::session::{Queue, Session, Transfer};
use crate::url::Transport;

/// A load on one unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Whether it writes; this destroys the data there.
    pub write: bool,
    /// Bytes per command, limited to the unit's maximum and rounded to whole blocks.
    pub io: u32,
    /// Number of outstanding commands.
    pub depth: usize,
    /// Warm-up time, not measured.
    pub warmup: Duration,
    /// Measured time.
    pub time: Duration,
    /// Maximum bytes to transfer, including the warm-up.
    pub most_bytes: u64,
    /// The part of the unit to use, in bytes from its beginning.
    pub span: u64,
}

/// The result of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moved {
    /// Bytes of commands that ended in the measured time.
    pub bytes: u64,
    /// The measured time, seconds.
    pub seconds: f64,
    /// Median latency of these commands.
    pub p50: Duration,
    /// Number of commands that succeeded.
    pub commands: u64,
}

impl Moved {
    /// Rate in bytes per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// Maximum number of latencies kept per load.
const MOST_LATENCIES: usize = 1 << 16;
/// Maximum number of retries of a command after a unit attention or a busy status.
const TRIES: u8 = 16;

/// Pings the target up to `count` times, one after the other, for at most `limit` in total.
///
/// # Errors
/// The reason why the session ended; [`Error::TimedOut`] if there was no answer at all.
pub async fn round_trips(session: &Session, count: usize, limit: Duration) -> Result<RoundTrips, Error> {
    let end = runtime::now() + limit;
    let mut times = Vec::with_capacity(count.min(1024));
    while times.len() < count.clamp(1, 1024) {
        let left = end.saturating_duration_since(runtime::now());
        match runtime::timeout(left, session.ping()).await {
            Ok(time) => times.push(time?),
            Err(_elapsed) => break,
        }
    }
    RoundTrips::of(&mut times).ok_or(Error::TimedOut("ping"))
}

/// The limits of the session's login, its target and its unit. They are the target's own limits if
/// the login offered everything.
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

/// Loads a unit through the session's queue. The session's queue depth must be at least the load's.
///
/// # Errors
/// [`Error::Argument`] for a unit with no room for a command; otherwise the error of a command.
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
    let begin = runtime::now();
    let (start, end) = (begin + load.warmup, begin + load.warmup + load.time);
    let most_commands = (load.most_bytes / u64::from(len)).max(1);
    let mut sent: Vec<Option<(u64, Instant, u8)>> = vec![None; depth];
    let mut free: Vec<usize> = (0..depth).rev().collect();
    let (mut next, mut begun, mut ended) = (0u64, 0u64, Vec::new());
    let (mut moved, mut latencies) = (Moved::default(), Vec::new());
    let (mut last, mut all_bytes) = (begin, 0);
    loop {
        let now = runtime::now();
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
                        runtime::sleep(Duration::from_millis(10)).await;
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
        // A load limited by its bytes ended with its last command. If less than half of the
        // measured time had passed, all of it counts.
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

/// Whether a retry may succeed: unit attention, BUSY, TASK SET FULL.
fn is_passing(error: &Error) -> bool {
    let busy = matches!(error, Error::Scsi(scsi) if matches!(scsi.status, 0x08 | 0x28));
    busy || error.sense_key() == Some(scsi::SenseKey::UnitAttention)
}

/// Incompressible bytes.
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
