//! READ. Data goes from the store's own memory to the transport if no isolation is requested. An
//! isolated READ puts a copy, since others may change the data as soon as its locks are gone. So
//! does every READ of a unit that has secrets.

use osd::Id;
use osd::cdb::ObjectRange;
use runtime::Bytes;

use super::failure::{Failure, field};
use super::limits::CHUNK_BYTES;
use super::segments::Segments;
use super::task::{Task, Touch};
use crate::store::{Hold, TimesUpdate};

/// READ: data, then set and get attributes.
pub(super) async fn read(task: &mut Task<'_>, id: Id, range: ObjectRange) -> Result<(), Failure> {
    task.take_parameters().await?;
    let segments = Segments::of(task, range)?;
    let (start, end) = segments.span();
    task.isolate(id, Touch::Read { start, end }).await?;
    task.observe(id, async |task| {
        let info = task.unit.user_object(id)?;
        if start > info.length && segments.total() > 0 {
            return Err(Failure::cdb(task.start_field()));
        }
        let mut moved = 0;
        let mut sending = Sending { stalled: false, hold: None, created: info.times.created };
        for segment in segments.iter() {
            let there = info.length.saturating_sub(segment.start).min(segment.len);
            let put = sending.put_range(task, id, segment.start, there).await?;
            moved += put;
            // Behind the object's end, where it was or where it is by now, nothing follows.
            if put < segment.len {
                break;
            }
        }
        if moved < segments.total() {
            task.read_past_end = Some(moved);
        }
        task.touch(id, TimesUpdate { data_accessed: Some(task.now), ..TimesUpdate::default() })
    })
    .await
}

/// The initiator's pace in taking a READ's data.
struct Sending {
    /// It does not: it must not keep the store's memory for as long as it likes, so it gets copies
    /// from now on.
    stalled: bool,
    /// Space freed while it is being sent is not reused yet, as long as the initiator keeps up.
    hold: Option<Hold>,
    /// When the object was created.
    created: u64,
}

impl Sending {
    /// Puts `len` bytes from `start` on, and says how many there were: fewer if the object became
    /// shorter meanwhile.
    async fn put_range(&mut self, task: &mut Task<'_>, id: Id, start: u64, len: u64) -> Result<u64, Failure> {
        let mut done = 0;
        while done < len {
            if task.transfer.room() == 0 {
                // Read no more than the initiator has room for.
                task.transfer.skip(len - done);
                return Ok(len);
            }
            if task.transfer.in_at() > 0 {
                self.ready(task, id).await?;
            }
            let step = (len - done).min(CHUNK_BYTES);
            let hold = self.hold.take().unwrap_or_else(|| task.unit.store.hold());
            let read = task.unit.store.read_to_send(id, start + done, step as usize); // at most 1 MiB
            let data = read.await.map_err(Failure::read)?;
            let got = data.len() as u64;
            let copied = task.isolated() || task.unit.security.has_secrets();
            for buf in data {
                let buf = match (copied, self.stalled) {
                    (true, _) => buf.stable().ok_or_else(Failure::busy)?.into_buf(),
                    // Without memory for a copy, the store's own memory is sent all the same.
                    (false, true) => buf.stable().map_or(buf, Bytes::into_buf),
                    (false, false) => buf,
                };
                task.transfer.put(buf);
            }
            // A copy needs none.
            self.hold = (!copied && !self.stalled).then_some(hold);
            done += got;
            if got < step {
                break;
            }
        }
        Ok(done)
    }

    /// Waits until the connection takes more; if that is not at once, the command keeps neither
    /// space nor partitions from others meanwhile, and goes on with no other object that has got
    /// the id.
    async fn ready(&mut self, task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
        if task.transfer.is_ready().await? {
            return Ok(());
        }
        self.stalled = true;
        self.hold = None;
        task.wait().await?;
        let is_same = task.unit.user_object(id)?.times.created == self.created;
        if is_same { Ok(()) } else { Err(Failure::cdb(field::OBJECT)) }
    }
}
