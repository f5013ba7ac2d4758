//! A world in which one session writes over several connections, and aborts what it has sent, while
//! segments are lost. After the answer to a function, none of its writes may be executed any more
//! (RFC 7143 §4.2.3.3): another session reads at once, and again at the end.

use std::time::Duration;

use disk::unit::DiskOptions;
use iscsi_client::{
    Command, Error, Lun, Options, Session, TaskManagementFunction as Function, TaskManagementResult, Ticket,
    Url,
};
use runtime::sim::{self, Network};
use scsi::cdb::build::{Flags, read10, write10};

use crate::daemon::{self, NAME};
use crate::host::{Host, Medium};

use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};

/// Blocks of the disk, of 512 bytes. Each write has one of its own.
const BLOCKS: usize = 128;
const ROUNDS: usize = 8;
const MOST_WRITES: u64 = 12;
const TRIES: u32 = 100;
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a seed.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    let network =
        Network { lost_per_million: 30_000, retransmission: Duration::from_millis(60), ..Network::default() };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--aborts", seed, config, move || whole(seed, loud))
}

/// An answered write, and the other session's reading then.
struct Write {
    block: usize,
    aborted: bool,
    seen: bool,
}

fn stamp(block: usize) -> Vec<u8> {
    vec![block as u8 + 1; 512]
}

/// Reads the whole disk. Returns for each write whether it is on the disk.
async fn look(session: &Session) -> Result<Vec<bool>, String> {
    let read = Command::new(Lun::ZERO, &read10(0, BLOCKS as u16, Flags::default()));
    for _ in 0..TRIES {
        let response = session.execute(read.clone().reading(BLOCKS as u32 * 512)).await;
        // Unit attentions of resets come first.
        if let Ok(response) = response.and_then(iscsi_client::Response::ok) {
            let data = response.data.to_vec();
            let is_there = |block| data.get(block * 512..(block + 1) * 512) == Some(&stamp(block)[..]);
            return Ok((0..BLOCKS).map(is_there).collect());
        }
    }
    Err("the disk cannot be read".into())
}

async fn whole(seed: u64, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x4142_5254);
    let mut settings = Plan::new(seed).target;
    (settings.iser, settings.chap) = (None, None);
    (settings.connections, settings.queue_depth) = (4, 64);
    let config = daemon::config(&settings);
    let cores = daemon::cores(1 + rng.index(3));
    let medium = Medium::new(BLOCKS, DiskOptions::default(), (0, 0));
    let mut host = Host::new(cores, config, vec![medium], rng.pick(&[1, 1000, 20_000]));
    host.start()?;
    let url = Url::portal("10.0.0.200", 3260).with_unit(NAME, 0);
    let options = Options {
        connections: rng.pick(&[1, 2, 4]),
        error_recovery_level: rng.pick(&[0, 0, 1, 2]),
        ..Options::default()
    };
    let session = Session::connect(&url, options).await.map_err(|error| format!("no login: {error}"))?;
    let other = Options { initiator: "iqn.2026-01.example.sim:other".into(), ..Options::default() };
    let other = Session::connect(&url, other).await.map_err(|error| format!("no login: {error}"))?;
    look(&session).await?;
    let mut writes: Vec<Write> = Vec::new();
    let mut block = 0;
    for _ in 0..ROUNDS {
        let mut sent = Vec::new();
        for _ in 0..rng.between(1, MOST_WRITES) {
            let cdb = write10(block as u32, 1, Flags::default());
            let write = Command::new(Lun::ZERO, &cdb).writing(runtime::Buf::from(stamp(block))).once();
            let ticket = session.start(write).await.map_err(|error| error.to_string())?;
            sent.push((block, ticket));
            block += 1;
            if rng.chance(300) {
                runtime::sleep(Duration::from_micros(rng.below(3000))).await;
            }
        }
        let function = rng.pick(&[
            Function::AbortTask,
            Function::AbortTaskSet,
            Function::ClearTaskSet,
            Function::LogicalUnitReset,
            Function::TargetWarmReset,
        ]);
        if loud {
            eprintln!("{:?} {function} of blocks up to {block}", runtime::clock());
        }
        let named = abort(&session, function, &sent, &mut rng).await?;
        let seen = look(&other).await?;
        for (at, (block, ticket)) in sent.into_iter().enumerate() {
            let aborted = match ticket.await.and_then(iscsi_client::Response::ok) {
                Ok(_) => false,
                Err(Error::Aborted) if named.is_none_or(|named| named == at) => true,
                // A reset's unit attention: it was not done.
                Err(Error::Scsi(_)) => continue,
                Err(error) => return Err(format!("the write of block {block} ended: {error}")),
            };
            writes.push(Write { block, aborted, seen: seen[block] });
        }
    }
    if session.reconnects() + session.recoveries().connections > 0 {
        return Err("a connection was lost for no reason".into());
    }
    runtime::sleep(Duration::from_secs(2)).await;
    let last = look(&other).await?;
    for Write { block, aborted, seen } in &writes {
        match (aborted, seen, last[*block]) {
            (true, false, true) => {
                return Err(format!("the write of block {block} was done after its abort"));
            }
            (_, true, false) | (false, _, false) => {
                return Err(format!("the write of block {block} is gone"));
            }
            _ => {}
        }
    }
    drop((session.close().await, other.close().await));
    host.kill().await;
    let aborted = writes.iter().filter(|write| write.aborted).count() as u64;
    Ok(Report { commands: block as u64, aborted, ..Report::default() })
}

/// Aborts writes in flight. Returns the place of the write, if the function affects a single one.
async fn abort(
    session: &Session,
    function: Function,
    sent: &[(usize, Ticket)],
    rng: &mut Rng,
) -> Result<Option<usize>, String> {
    if function == Function::AbortTask {
        let at = rng.index(sent.len());
        session.abort(&sent[at].1).await.map_err(|error| format!("ABORT TASK: {error}"))?;
        return Ok(Some(at));
    }
    match session.task_management(function, Lun::ZERO).await {
        Ok(Some(TaskManagementResult::FunctionComplete)) => Ok(None),
        result => Err(format!("{function}: {result:?}")),
    }
}
