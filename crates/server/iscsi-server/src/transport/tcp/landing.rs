//! Landing over TCP: long data segments of WRITEs are received straight into their units' memory.
//!
//! Each receive is one system call that takes the bytes already there, and never waits. A unit
//! lends its memory only for that call. Before each receive the place of the data is asked for
//! anew. So a task that was aborted, or a unit that refuses data now, gets no more of it. Between
//! receives, and while nothing has come, no memory is held. Data without a place goes to the PDU's
//! own buffer, and is copied from there.

use device::{LEAST_LANDING, Landing, LandingStep};
use iscsi::pdu::Bhs;
use runtime::{Buf, Chain, TcpStream};
use server_core::TcpAccount;
use smallvec::SmallVec;

use super::receive::{Body, Taker};
use crate::end::End;

/// The parts of a data segment that were placed in units' memory, in order.
#[derive(Default)]
pub(super) struct Landed {
    parts: SmallVec<[(usize, Buf); 2]>,
    /// Bytes of them that were copied.
    copied: usize,
}

impl Landed {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Offset in the segment of the end of the last part; 0 if there is none.
    fn end(&self) -> usize {
        self.parts.last().map_or(0, |(start, buf)| start + buf.len())
    }

    /// Whether the byte before `at` of the segment is in one of them.
    fn reaches(&self, at: usize) -> bool {
        !self.is_empty() && self.end() == at
    }

    fn push(&mut self, at: usize, buf: Buf) {
        let reaches = self.reaches(at);
        let last = self.parts.last_mut().filter(|_| reaches);
        let alone = match last {
            Some((_, last)) => last.join(buf).err(),
            None => Some(buf),
        };
        self.parts.extend(alone.map(|buf| (at, buf)));
    }

    /// The whole segment: these parts, and between them those of `bytes`.
    pub(super) fn among(self, mut bytes: Buf, account: &TcpAccount) -> Chain {
        let landed: usize = self.parts.iter().map(|(_, buf)| buf.len()).sum();
        account.count(bytes.len(), landed - self.copied);
        let (mut chain, mut at) = (Chain::new(), 0);
        for (start, buf) in self.parts {
            chain.push(bytes.split_to(start - at));
            bytes.advance(buf.len());
            at = start + buf.len();
            chain.push(buf);
        }
        chain.push(bytes);
        chain
    }
}

/// Copies the blocks of `bytes`, which have come before the data placed now, to their places: then
/// all of them make one piece. They begin at byte `start` of their segment, and end before byte
/// `offset` of their command's data-out, where a block begins.
fn place_before(landing: &Landing, offset: u64, bytes: &[u8], start: usize, landed: &mut Landed) {
    let len = bytes.len() - bytes.len() % landing.block as usize;
    if len == 0 {
        return;
    }
    let skew = bytes.len() - len;
    let at = landing.at + offset - len as u64;
    let placed = landing.unit.land(at, len, &mut |place| {
        place.write(&bytes[skew..]);
        len
    });
    if let Some(placed) = placed {
        landed.copied += placed.len();
        landed.push(start + skew, placed);
    }
}

/// Receives the part of a data segment that may be placed directly, as it comes.
pub(super) async fn receive(
    stream: &TcpStream,
    bhs: &Bhs,
    body: &mut Body,
    taker: &mut impl Taker,
) -> Result<(), End> {
    while body.filled < body.data_len {
        let Some((landing, offset)) = taker.place(bhs, body.filled) else { return Ok(()) };
        let there = stream.pending()?;
        if there == 0 {
            stream.readable().await?;
            if stream.pending()? == 0 {
                // The peer has ended its stream, as the receive of the rest will find.
                return Ok(());
            }
            continue;
        }
        let wanted = body.data_len - body.filled;
        let block = landing.block as usize;
        // Data that follows a placed part has the next place, and makes one piece with it.
        let least = if body.landed.reaches(body.filled) { block } else { LEAST_LANDING };
        let came = match landing.step(offset, wanted, there, least) {
            LandingStep::Rest => return Ok(()),
            LandingStep::Aside(len) => stream.try_recv(&mut body.bytes[body.filled..body.filled + len])?,
            LandingStep::Land(at, len) => {
                let start = body.landed.end();
                let before = &body.bytes[start..body.filled];
                place_before(&landing, offset, before, start, &mut body.landed);
                let mut result = Ok(0);
                let landed = landing.unit.land(at, len, &mut |place| {
                    result = stream.try_recv_into(place);
                    result.as_ref().map_or(0, |came| *came)
                });
                match (result?, landed) {
                    // The receive ended within a block, though whole ones were there: the socket
                    // cannot be relied on.
                    (came, Some(_)) if came % block != 0 => return Err(End::HungUp),
                    (came, Some(buf)) => {
                        body.landed.push(body.filled, buf);
                        came
                    }
                    (0, None) => return Ok(()),
                    (_, None) => return Err(End::HungUp),
                }
            }
        };
        if came == 0 {
            return Err(End::HungUp);
        }
        body.filled += came;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use runtime::Region;
    use server_core::TcpCounters;

    use super::*;

    #[test]
    fn what_has_landed_takes_its_place_among_what_has_not() {
        let region = Region::new(8192).expect("memory");
        region.fill(0, 8192, 7).expect("it is there");
        let part = |at, len| region.slice(at, len).expect("it is there");
        let mut landed = Landed::default();
        landed.push(100, part(512, 512));
        landed.push(612, part(1024, 512));
        assert_eq!(landed.parts.len(), 1, "side by side");
        landed.push(2000, part(4096, 100));
        landed.push(2100, part(100, 10));
        let account = TcpAccount::default();
        let chain = landed.among(vec![1; 3000].into(), &account);
        let mut expected = vec![1; 3000];
        expected[100..1124].fill(7);
        expected[2000..2110].fill(7);
        assert_eq!(chain.to_vec(), expected);
        let lens: Vec<usize> = chain.iter().map(Buf::len).collect();
        assert_eq!(lens, [100, 1024, 876, 100, 10, 890]);
        assert_eq!(account.counters(), TcpCounters { received: 3000, landed: 1134 });
    }

    #[test]
    fn a_segment_that_has_landed_whole_is_one_piece() {
        let region = Region::new(8192).expect("memory");
        let mut landed = Landed::default();
        for at in [0, 1024, 3072] {
            let len = if at == 0 { 1024 } else { 2048 };
            landed.push(at, region.slice(at, len).expect("it is there"));
        }
        assert_eq!(landed.among(vec![1; 5120].into(), &TcpAccount::default()).bufs().len(), 1);
    }

    #[test]
    fn the_blocks_that_came_before_are_put_in_their_place_and_not_counted() {
        struct Memory(std::sync::Arc<Region>);
        impl device::Land for Memory {
            fn land(&self, at: u64, len: usize, fill: &mut device::Fill<'_>) -> Option<Buf> {
                let mut place = self.0.destination(at as usize, len).ok()?;
                let filled = fill(&mut place);
                self.0.slice(at as usize, filled).ok()
            }
        }
        let region = Region::new(16_384).expect("memory");
        let unit = std::rc::Rc::new(Memory(region.clone()));
        let landing = Landing { unit, at: 4096, len: 8192, block: 512 };
        let mut landed = Landed::default();
        // 1,100 bytes from byte 436 of the command on: their first block began before.
        let bytes: Vec<u8> = (0..1100).map(|i| i as u8).collect();
        place_before(&landing, 1536, &bytes, 0, &mut landed);
        assert_eq!(region.slice(4608, 1024).expect("it is there").to_vec(), bytes[76..]);
        assert_eq!(region.slice(4532, 76).expect("it is there").to_vec(), [0; 76]);
        landed.push(1100, region.slice(5632, 512).expect("it is there"));
        assert_eq!((landed.parts.len(), landed.end()), (1, 1612));
        place_before(&landing, 2048, &[], 1612, &mut landed);
        let account = TcpAccount::default();
        let chain = landed.among([bytes.clone(), vec![1; 512]].concat().into(), &account);
        assert_eq!(chain.to_vec(), [bytes, vec![0; 512]].concat());
        assert_eq!(account.counters().landed, 512);
    }
}
