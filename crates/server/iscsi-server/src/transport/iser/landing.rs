//! Landing over iSER: what RDMA Reads bring of long WRITEs is put straight into their units' memory.
//!
//! The queue pair asks for each piece anew where it belongs, so that a task that was aborted, or a unit that will not have it now, gets nothing
//! any more; only while a piece is put in its place has a unit lent its memory. See [`crate::connection`]'s landings. The pieces are the queue
//! pair's: without a CRC what is there of an FPDU's payload, with one all of it, once its CRC was found right.

use device::{LEAST_LANDING, Landing, LandingStep};
use rdma::{DataSink, Fill, Next};
use runtime::Buf;

use super::key_of;
use crate::connection::Connection;

impl Connection {
    /// Where the bytes from `offset` of an RDMA Read on belong, and which byte of their command's data-out the first is.
    fn place_of_read(&self, id: u64, offset: u64) -> Option<(Landing, u64)> {
        let (task, at) = key_of(id);
        Some((self.place_fetched(task)?, u64::from(at) + offset))
    }
}

impl DataSink for Connection {
    fn next(&self, id: u64, offset: u64, wanted: usize, there: usize, any: bool) -> Next {
        let Some((landing, offset)) = self.place_of_read(id, offset) else { return Next::Rest };
        let least = if any { landing.block as usize } else { LEAST_LANDING };
        match landing.step(offset, wanted, there, least) {
            LandingStep::Land(_, len) => Next::Place(len),
            LandingStep::Aside(len) => Next::Buffer(len),
            LandingStep::Rest => Next::Rest,
        }
    }

    fn place(&self, id: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        let (landing, offset) = self.place_of_read(id, offset)?;
        landing.unit.land(landing.at + offset, len, fill)
    }
}
