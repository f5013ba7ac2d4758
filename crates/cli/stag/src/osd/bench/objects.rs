//! Preparations for a measurement: partitions, objects, their contents, and the list of ids.

use iscsi_client::{Error, Lun, Session};
use osd::Id;
use osd::cdb::Command;
use runtime::Buf;

use super::LoadError;
use super::requests::{self, LIST_HEADER};

/// Most objects of one CREATE.
const MANY: u64 = 10_000;
/// Most ids of one LIST when all are wanted.
const WINDOW: u64 = 60_000;

/// Runs a command that must succeed.
pub async fn run(session: &Session, command: iscsi_client::Command) -> Result<iscsi_client::Response, Error> {
    session.execute(command).await?.ok()
}

/// Runs a command that may fail because the object exists already, or does not exist.
async fn try_run(session: &Session, command: iscsi_client::Command) -> Result<(), Error> {
    match run(session, command).await {
        Ok(_) | Err(Error::Scsi(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

pub async fn partition(session: &Session, lun: Lun, partition: u64) -> Result<(), Error> {
    let create = Command::CreatePartition { requested: partition };
    try_run(session, requests::command(lun, create, false)).await
}

/// Creates an object with the attribute that the load gets and sets.
pub async fn object(session: &Session, lun: Lun, id: Id) -> Result<(), Error> {
    try_run(session, requests::create(lun, id, false)).await?;
    run(session, requests::set(lun, id, &requests::set_list(1), false)).await.map(drop)
}

/// Fills the object with `span` bytes, none of which is a hole.
pub async fn contents(session: &Session, lun: Lun, id: Id, span: u64) -> Result<(), Error> {
    let step = 1 << 20;
    let data = Buf::from(vec![0xA5; step as usize]);
    for start in (0..span).step_by(step as usize) {
        let len = step.min(span - start) as usize;
        run(session, requests::write(lun, id, start, data.slice(..len), false)).await?;
    }
    Ok(())
}

pub async fn ids(session: &Session, lun: Lun, partition: u64) -> Result<Vec<u64>, LoadError> {
    let (mut found, mut initial) = (Vec::new(), 0);
    loop {
        let data = run(session, requests::listing(lun, partition, initial, WINDOW)).await?.data.to_vec();
        let word = |at: usize| {
            data.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_be_bytes)
        };
        if data.len() < LIST_HEADER {
            return Err(LoadError::Answer(format!("a LIST of {} bytes", data.len())));
        }
        found.extend((LIST_HEADER..data.len() - (data.len() - LIST_HEADER) % 8).step_by(8).map(word));
        let next = word(8);
        if next == 0 {
            return Ok(found);
        }
        if next <= initial {
            return Err(LoadError::Answer(format!("a LIST from {initial:#x} goes on at {next:#x}")));
        }
        initial = next;
    }
}

/// Creates objects until the partition has `wanted`. Returns how many it created.
pub async fn fill(session: &Session, lun: Lun, partition: u64, wanted: u64) -> Result<u64, LoadError> {
    let have = ids(session, lun, partition).await?.len() as u64;
    let mut left = wanted.saturating_sub(have);
    while left > 0 {
        let count = left.min(MANY);
        let create = Command::Create { partition, requested: 0, count: count as u16 };
        run(session, requests::command(lun, create, false)).await?;
        left -= count;
    }
    Ok(wanted.saturating_sub(have))
}
