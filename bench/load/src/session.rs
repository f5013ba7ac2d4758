//! One connection's load: takes received bytes, counts what completed, and queues what follows. No
//! I/O.

use std::time::Instant;

use load::{Engine, Random};

use crate::LoadError;
use crate::login::Negotiated;
use crate::outbox::Outbox;
use crate::report::Tally;
use crate::wire::{self, BHS, Bhs, FINAL, IMMEDIATE, NO_TAG, op};

/// The load of each connection.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of one I/O.
    pub block: usize,
    pub depth: u16,
    pub random: bool,
    /// Percentage of commands that read.
    pub read_percent: u8,
    pub lun: u16,
    /// The unit's logical block size in bytes.
    pub lba_bytes: usize,
    /// The unit's size in I/Os of `block` bytes.
    pub slots: u64,
}

#[derive(Clone, Copy, Default)]
struct Task {
    received: usize,
    read: bool,
    running: bool,
}

/// One connection with a session of its own.
pub struct Session {
    plan: Plan,
    negotiated: Negotiated,
    cmd_sn: u32,
    exp_stat_sn: u32,
    max_cmd_sn: u32,
    tasks: Vec<Task>,
    /// A command's slot is its tag.
    engine: Engine,
    header: Bhs,
    /// Bytes of `header` that are there, and bytes of the current PDU's body still to pass over.
    have: usize,
    skip: usize,
    random: Random,
    next_slot: u64,
    logged_out: bool,
    pub outbox: Outbox,
}

impl Session {
    /// A session after its login and the commands before the load. `number` distinguishes
    /// connections.
    pub fn new(plan: Plan, negotiated: Negotiated, number: u16) -> Self {
        let depth = plan.depth;
        Self {
            cmd_sn: negotiated.cmd_sn,
            exp_stat_sn: negotiated.exp_stat_sn,
            max_cmd_sn: negotiated.max_cmd_sn,
            tasks: vec![Task::default(); usize::from(depth)],
            engine: Engine::closed(depth),
            header: [0; BHS],
            have: 0,
            skip: 0,
            random: Random::new(0, number.into()),
            next_slot: u64::from(number) * 99_991 % plan.slots.max(1),
            logged_out: false,
            outbox: Outbox::default(),
            plan,
            negotiated,
        }
    }

    /// Queues commands while there are free tags and the target's window (MaxCmdSN) is open.
    pub fn issue(&mut self, now: Instant) {
        while !wire::after(self.cmd_sn, self.max_cmd_sn) {
            let Some(tag) = self.engine.begin(now) else { return };
            self.command(tag);
        }
    }

    /// Number of I/Os that cover the unit.
    pub fn slots(&self) -> u64 {
        self.plan.slots
    }

    pub fn stop(&mut self) {
        self.engine.stop();
    }

    /// Whether nothing is in flight.
    pub fn idle(&self) -> bool {
        self.engine.is_idle() && self.outbox.is_empty()
    }

    /// Whether the target has answered the Logout.
    pub fn logged_out(&self) -> bool {
        self.logged_out
    }

    /// Queues a Logout that closes the session (RFC 7143 §11.14).
    pub fn logout(&mut self) {
        let mut bhs = [0; BHS];
        bhs[0] = op::LOGOUT | IMMEDIATE;
        bhs[1] = FINAL;
        wire::put32(&mut bhs, 16, 0xffff_fffe);
        wire::put32(&mut bhs, 24, self.cmd_sn);
        wire::put32(&mut bhs, 28, self.exp_stat_sn);
        self.outbox.push(&bhs, 0..0);
    }

    fn command(&mut self, tag: u16) {
        let read = self.plan.read_percent == 100
            || self.plan.read_percent > 0 && self.random.below(100) < u64::from(self.plan.read_percent);
        let slot = if self.plan.random {
            self.random.below(self.plan.slots)
        } else {
            let slot = self.next_slot;
            self.next_slot = (slot + 1) % self.plan.slots;
            slot
        };
        let blocks = self.plan.block / self.plan.lba_bytes;
        let lba = slot * blocks as u64;
        let mut bhs = [0; BHS];
        bhs[0] = op::SCSI_COMMAND;
        bhs[1] = FINAL | if read { 0x40 } else { 0x20 } | 1; // R or W, SIMPLE (§11.3.1)
        wire::set_lun(&mut bhs, self.plan.lun);
        wire::put32(&mut bhs, 16, u32::from(tag));
        wire::put32(&mut bhs, 20, self.plan.block as u32);
        wire::put32(&mut bhs, 24, self.cmd_sn);
        wire::put32(&mut bhs, 28, self.exp_stat_sn);
        put_cdb(&mut bhs[32..], read, lba, blocks as u32);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        let payload = if read || !self.negotiated.immediate {
            0
        } else {
            self.plan.block.min(self.negotiated.first_burst).min(self.negotiated.max_send)
        };
        wire::set_data_len(&mut bhs, payload);
        self.outbox.push(&bhs, 0..payload);
        self.tasks[usize::from(tag)] = Task { received: 0, read, running: true };
    }

    /// Takes `bytes` off the wire; queues new commands for completed ones, and data for R2Ts.
    ///
    /// # Errors
    /// PDUs that the RFC does not permit, and those that end the session.
    pub fn absorb(&mut self, mut bytes: &[u8], now: Instant, tally: &mut Tally) -> Result<(), LoadError> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            if self.have == 0 && bytes.len() >= BHS {
                self.header.copy_from_slice(&bytes[..BHS]);
                bytes = &bytes[BHS..];
            } else {
                let wanted = (BHS - self.have).min(bytes.len());
                self.header[self.have..self.have + wanted].copy_from_slice(&bytes[..wanted]);
                self.have += wanted;
                bytes = &bytes[wanted..];
                if self.have < BHS {
                    break;
                }
                self.have = 0;
            }
            self.skip = wire::body_len(&self.header);
            self.pdu(now, tally)?;
        }
        self.issue(now);
        Ok(())
    }

    fn pdu(&mut self, now: Instant, tally: &mut Tally) -> Result<(), LoadError> {
        let bhs = self.header;
        let max_cmd_sn = wire::get32(&bhs, 32);
        if wire::after(max_cmd_sn, self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        match bhs[0] & 0x3f {
            op::DATA_IN => {
                let tag = self.running(&bhs)?;
                self.tasks[tag].received += wire::data_len(&bhs);
                if bhs[1] & wire::STATUS != 0 {
                    self.complete(tag, 0, bhs[3], now, tally);
                }
            }
            op::SCSI_RESPONSE => {
                let tag = self.running(&bhs)?;
                self.complete(tag, bhs[2], bhs[3], now, tally);
            }
            op::R2T => {
                let tag = self.running(&bhs)?;
                self.data_out(tag, &bhs)?;
            }
            op::NOP_IN if wire::get32(&bhs, 20) != NO_TAG => self.nop_out(&bhs),
            op::NOP_IN => {}
            op::LOGOUT_RESPONSE => self.logged_out = true,
            op::REJECT => {
                return Err(LoadError::Protocol(format!("the target rejects a PDU, reason {:#04x}", bhs[2])));
            }
            op::ASYNC => {
                return Err(LoadError::Protocol(format!("the target sends asynchronous event {}", bhs[36])));
            }
            other => return Err(LoadError::Protocol(format!("opcode {other:#04x} in full-feature phase"))),
        }
        Ok(())
    }

    fn running(&self, bhs: &Bhs) -> Result<usize, LoadError> {
        let tag = wire::get32(bhs, 16) as usize;
        if self.tasks.get(tag).is_some_and(|task| task.running) {
            return Ok(tag);
        }
        Err(LoadError::Protocol(format!(
            "opcode {:#04x} for task tag {tag:#x}, which is not in flight",
            bhs[0] & 0x3f
        )))
    }

    fn complete(&mut self, tag: usize, response: u8, status: u8, now: Instant, tally: &mut Tally) {
        self.exp_stat_sn = wire::get32(&self.header, 24).wrapping_add(1);
        let task = &mut self.tasks[tag];
        task.running = false;
        let wanted = if task.read { self.plan.block } else { 0 };
        // Bits 1 to 4 of byte 1 are the residual flags (RFC 7143 §11.4.1).
        let residual = self.header[1] & 0x1e != 0;
        let Some(ns) = self.engine.end(tag as u16, now) else { return };
        tally.ios += 1;
        tally.latency.record(ns);
        if response != 0 || status != 0 || residual || task.received != wanted {
            tally.errors += 1;
            if tally.first_error.is_none() {
                tally.first_error = Some(format!(
                    "response {response:#04x}, status {status:#04x}, {} of {wanted} bytes, residual: {residual}",
                    task.received
                ));
            }
        }
    }

    /// Answers an R2T (RFC 7143 §11.8) with Data-Out PDUs (§11.7).
    fn data_out(&mut self, tag: usize, r2t: &Bhs) -> Result<(), LoadError> {
        let (offset, length) = (wire::get32(r2t, 40) as usize, wire::get32(r2t, 44) as usize);
        let end = offset.checked_add(length).filter(|end| *end <= self.plan.block);
        let Some(end) =
            end.filter(|_| length > 0 && length <= self.negotiated.max_burst && !self.tasks[tag].read)
        else {
            return Err(LoadError::Protocol(format!("an R2T for {length} bytes at {offset}")));
        };
        let (mut at, mut data_sn) = (offset, 0);
        while at < end {
            let len = (end - at).min(self.negotiated.max_send);
            let mut bhs = [0; BHS];
            bhs[0] = op::DATA_OUT;
            bhs[1] = if at + len == end { FINAL } else { 0 };
            bhs[8..16].copy_from_slice(&r2t[8..16]);
            bhs[16..24].copy_from_slice(&r2t[16..24]);
            wire::set_data_len(&mut bhs, len);
            wire::put32(&mut bhs, 28, self.exp_stat_sn);
            wire::put32(&mut bhs, 36, data_sn);
            wire::put32(&mut bhs, 40, at as u32);
            self.outbox.push(&bhs, at..at + len);
            at += len;
            data_sn += 1;
        }
        Ok(())
    }

    fn nop_out(&mut self, nop_in: &Bhs) {
        let mut bhs = [0; BHS];
        bhs[0] = op::NOP_OUT | IMMEDIATE;
        bhs[1] = FINAL;
        bhs[8..16].copy_from_slice(&nop_in[8..16]);
        wire::put32(&mut bhs, 16, NO_TAG);
        bhs[20..24].copy_from_slice(&nop_in[20..24]);
        wire::put32(&mut bhs, 24, self.cmd_sn);
        wire::put32(&mut bhs, 28, self.exp_stat_sn);
        self.outbox.push(&bhs, 0..0);
    }
}

/// READ or WRITE, of 10 bytes where the address fits (SBC-3 §5.13, §5.40), else of 16.
fn put_cdb(cdb: &mut [u8], read: bool, lba: u64, blocks: u32) {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => {
            cdb[0] = if read { 0x28 } else { 0x2a };
            wire::put32(cdb, 2, lba);
            cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        }
        _ => {
            cdb[0] = if read { 0x88 } else { 0x8a };
            cdb[2..10].copy_from_slice(&lba.to_be_bytes());
            wire::put32(cdb, 10, blocks);
        }
    }
}
