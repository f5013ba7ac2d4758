//! READ. Data goes from the store's own memory to the transport where nobody asked for isolation; an isolated READ puts a
//! copy, since others may change the data as soon as its locks are gone, and so does every READ of a unit that has secrets.

use osd::Id;
use osd::cdb::ObjectRange;
use osd::sense::function;

use super::failure::Failure;
use super::limits::CHUNK_BYTES;
use super::segments::Segments;
use super::subject::at;
use super::task::{Task, Touch};
use crate::store::{Change, TimesUpdate};

/// READ: data, then set and get attributes.
pub(super) async fn read(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    task.take_parameters().await?;
    let segments = Segments::of(task, range)?;
    let (start, end) = segments.span();
    task.isolate(id, Touch::Read { start, end }).await?;
    task.progress.begin(function::COMMAND);
    let info = task.unit.user_object(id)?;
    if start > info.length && segments.total() > 0 {
        return Err(Failure::cdb(task.start_field()));
    }
    let total = segments.total();
    let mut moved = 0;
    // What is given up while it is on its way is not used for another object yet.
    let _hold = task.unit.store.hold();
    for segment in segments.iter() {
        let there = info.length.saturating_sub(segment.start).min(segment.len);
        moved += put_range(task, id, segment.start, there).await?;
        if there < segment.len {
            break;
        }
    }
    if moved < total {
        task.read_past_end = Some(moved);
    }
    task.touch(id, TimesUpdate { data_accessed: Some(task.now), ..TimesUpdate::default() })?;
    task.progress.done(function::COMMAND);
    task.function_done();
    task.set_and_get(id, Change::new()).await
}

/// Puts `len` bytes from `start` on, and says how many there were: fewer if the object became shorter meanwhile.
async fn put_range(task: &mut Task<'_>, id: Id, start: u64, len: u64) -> Result<u64, Failure> {
    let mut done = 0;
    while done < len {
        if task.transfer.room() == 0 {
            // What the initiator has no room for is not even read.
            task.transfer.skip(len - done);
            return Ok(len);
        }
        if done > 0 {
            task.yield_turn();
            task.transfer.ready().await?;
        }
        let step = (len - done).min(CHUNK_BYTES);
        let read = task.unit.store.read_to_send(at(id), start + done, step as usize); // at most 1 MiB
        let data = read.await.map_err(Failure::read)?;
        let got = data.len() as u64;
        let copied = task.isolated() || task.unit.security.has_secrets();
        for buf in data {
            let buf = match copied {
                false => buf,
                true => buf.stable().ok_or_else(Failure::busy)?.into_buf(),
            };
            task.transfer.put(buf);
        }
        done += got;
        if got < step {
            break;
        }
    }
    Ok(done)
}
