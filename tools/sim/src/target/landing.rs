//! Data that comes piece by piece, of PDUs or by RDMA Reads: what of it belongs to a WRITE lands in the unit's memory, as far as that is
//! lent, and the rest is kept until the PDU, or the RDMA Read, is whole.

use std::rc::Rc;

use device::LandingStep;
use iscsi::pdu::Bhs;
use iscsi::target::Fatal;
use runtime::{Buf, Chain};

use super::connection::Connection;
use super::payload::Pieces;
use super::{Broken, Control, Port, Target};
use crate::rdma::{Placed, Sink};
use crate::trace::note;

/// What has come of a PDU.
pub(super) struct Arriving {
    bhs: Bhs,
    ahs: Vec<u8>,
    /// Bytes of the data segment that are still to come.
    left: usize,
    /// Bytes behind it, which mean nothing.
    trailer: usize,
    /// Its command was begun.
    begun: bool,
    pieces: Chain,
}

impl Arriving {
    pub fn new(bhs: Bhs, ahs: Vec<u8>, data_len: usize, trailer: usize) -> Self {
        Self { bhs, ahs, left: data_len, trailer, begun: false, pieces: Chain::new() }
    }

    /// Begins its command, if it is one that may be.
    pub fn begin(&mut self, connection: &Rc<Connection>) -> Result<(), Fatal> {
        self.begun = connection.may_begin(&self.bhs);
        if self.begun {
            connection.begin(&self.bhs, &self.ahs, self.left)?;
        }
        Ok(())
    }

    /// Takes what it can at once of `input`, whose beginning is its. Says how many bytes, and how many of them landed: none when
    /// there are none.
    fn take(&mut self, input: &mut [u8], connection: &Connection, spoilt: bool) -> (usize, usize) {
        let there = self.left.min(input.len());
        if there == 0 {
            return (0, 0);
        }
        let mut aside = there;
        let filled = self.pieces.len();
        if let Some((landing, first)) = connection.place(&self.bhs) {
            // Down to a block, so that much lands in small worlds.
            let least = landing.block as usize;
            match landing.step(first + filled as u64, self.left, there, least) {
                LandingStep::Rest => {}
                LandingStep::Aside(len) => aside = len,
                LandingStep::Land(at, len) => {
                    if spoilt {
                        input[len / 2] ^= 1;
                    }
                    let landed = landing.unit.land(at, len, &mut |place| {
                        place.write(&input[..len]);
                        len
                    });
                    if let Some(landed) = landed {
                        self.left -= len;
                        self.pieces.push(landed);
                        return (len, len);
                    }
                }
            }
        }
        self.left -= aside;
        self.pieces.push(Buf::from(input[..aside].to_vec()));
        (aside, 0)
    }
}

impl Target {
    /// Goes on with a PDU whose data is coming. False: more of it must come first.
    pub(super) fn digest_arriving(
        self: &Rc<Self>,
        port: &Port,
        connection: &Rc<Connection>,
    ) -> Result<bool, Broken> {
        let Some(mut arriving) = port.arriving.borrow_mut().take() else { return Ok(true) };
        let mut input = port.input.borrow_mut();
        loop {
            let (taken, landed) = arriving.take(&mut input, connection, self.spoils_landings.get());
            input.drain(..taken);
            self.landed.set(self.landed.get() + landed as u64);
            if landed > 0 {
                note!(self.trace, "target: {landed} bytes landed of {}", arriving.bhs);
            }
            if taken == 0 {
                break;
            }
        }
        if arriving.left > 0 || input.len() < arriving.trailer {
            drop(input);
            *port.arriving.borrow_mut() = Some(arriving);
            return Ok(false);
        }
        input.drain(..arriving.trailer);
        drop(input);
        let Arriving { bhs, ahs, begun, pieces, .. } = arriving;
        match begun {
            true => connection.on_rest(Pieces(pieces))?,
            false => connection.on_pdu(&bhs, &ahs, Pieces(pieces), Control::default())?,
        }
        Ok(true)
    }
}

/// What RDMA Reads bring to a connection's tasks.
pub(super) struct Fetched<'a> {
    pub target: &'a Target,
    pub connection: &'a Connection,
}

impl Sink for Fetched<'_> {
    fn place(&self, id: u64, offset: u64, bytes: &[u8], rest: usize) -> Placed {
        let there = bytes.len();
        let Some((landing, first)) = self.connection.place_fetched(id, offset) else {
            return Placed::Aside(there);
        };
        match landing.step(first, there + rest, there, landing.block as usize) {
            LandingStep::Rest => Placed::Aside(there),
            LandingStep::Aside(len) => Placed::Aside(len),
            LandingStep::Land(at, len) => {
                let mut bytes = bytes[..len].to_vec();
                if self.target.spoils_landings.get() {
                    bytes[len / 2] ^= 1;
                }
                let landed = landing.unit.land(at, len, &mut |place| {
                    place.write(&bytes);
                    len
                });
                let Some(landed) = landed else { return Placed::Aside(there) };
                self.target.landed.set(self.target.landed.get() + len as u64);
                note!(self.target.trace, "target: {len} bytes landed of RDMA Read {id:#x} from {offset} on");
                Placed::There(landed)
            }
        }
    }
}
