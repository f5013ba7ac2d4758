//! Missing PDUs, which the numbers of later ones show: each gap is requested again by SNACK (RFC
//! 7143 §11.16).

use invariant::broken;

use crate::pdu::{Lun, RESERVED_TAG, SnackType};
use crate::target::Payload;

use super::event::ProtocolError;
use super::exchange::{Exchange, MAX_READY, Turn};
use super::ids::{ConnectionId, TaskKey};
use super::links::Snack;
use super::tasks::{Kind, Scsi, Task};

/// The maximum number of times that the same PDU is requested or resent.
pub(super) const MAX_TRIES: u8 = 10;

/// Requests missing PDUs.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The SNACK Tag of the last R-Data SNACK.
    snack_tag: u32,
}

impl Gaps {
    /// Accepts a StatSN if it is the expected one. Returns whether the PDU is to be processed.
    pub fn in_turn<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        got: u32,
    ) -> Result<bool, ProtocolError> {
        match exchange.turn(on, got)? {
            // A status that waits for its data already has this number.
            Turn::Now if exchange.links.get(on).is_some_and(|c| c.status.held.is_some()) => Ok(false),
            Turn::Now => {
                exchange.advance_status(on);
                Ok(true)
            }
            Turn::Old => Ok(false),
            Turn::Early => {
                self.status_missing(exchange, on, got)?;
                Ok(false)
            }
        }
    }

    /// The status with that number arrived early: earlier ones are missing.
    pub fn status_missing<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        got: u32,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = exchange.links.get_mut(on) else {
            broken!("a status on a lost connection");
            return Ok(());
        };
        let status = &mut connection.status;
        status.ticks = 0;
        let ask = status.gap.early(got);
        if ask && status.held.is_none() { self.ask_status(exchange, on) } else { Ok(()) }
    }

    /// Requests all statuses from the expected one on (RFC 7143 §11.16.1, Status).
    pub fn ask_status<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = exchange.links.get_mut(on) else {
            broken!("a missing status of a lost connection");
            return Ok(());
        };
        connection.status.ticks = 0;
        connection.status.tries += 1;
        if connection.status.tries > MAX_TRIES {
            return Err(ProtocolError::Unrecoverable);
        }
        let from = connection.exp_stat_sn;
        self.snack(exchange, on, SnackType::Status, (RESERVED_TAG, RESERVED_TAG), from, Lun::ZERO)
    }

    /// Resumes after the status that waited for its data was accepted, or its task ended: the
    /// statuses behind it were dropped.
    pub fn release_status<P: Payload, T>(&mut self, exchange: &mut Exchange<P, T>, on: ConnectionId) {
        let Some(connection) = exchange.links.get_mut(on) else {
            broken!("a status held on a lost connection");
            return;
        };
        connection.status.held = None;
        exchange.advance_status(on);
        if exchange.links.get(on).is_some_and(|c| c.status.gap.open) {
            // The next tick detects a flood of SNACKs.
            let _ = self.ask_status(exchange, on);
        }
    }

    /// The Data-In with that number arrived early: earlier ones are missing.
    pub fn data_missing<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
        got: u32,
    ) -> Result<(), ProtocolError> {
        let Some(Task { idle, kind: Kind::Scsi(scsi), .. }) = exchange.tasks.get_mut(key) else {
            broken!("data-in of no command");
            return Ok(());
        };
        *idle = 0;
        let trouble = scsi.trouble.get_or_insert_default();
        trouble.seen |= trouble.held.is_none();
        if !trouble.refused && trouble.data.early(got) { self.ask_data(exchange, on, key) } else { Ok(()) }
    }

    /// Requests all Data-In from the expected one on (RFC 7143 §11.16.1, Data/R2T and R-Data).
    pub fn ask_data<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
    ) -> Result<(), ProtocolError> {
        let epoch = exchange.links.get(on).map(|c| c.segment_epoch);
        let Some(scsi) = try_again(exchange, key)? else { return Ok(()) };
        let from = scsi.data_sn;
        if Some(scsi.segment_epoch) == epoch {
            return self.snack(exchange, on, SnackType::DataR2t, (key.0, RESERVED_TAG), from, Lun::ZERO);
        }
        self.snack_tag = self.snack_tag.wrapping_add(1) % (u32::MAX - 1);
        let tag = self.snack_tag + 1;
        scsi.trouble.get_or_insert_default().snack_tag = Some(tag);
        self.snack(exchange, on, SnackType::RData, (key.0, tag), from, Lun::ZERO)
    }

    /// The R2T with that number arrived early: earlier ones are missing.
    pub fn r2t_missing<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
        got: u32,
    ) -> Result<(), ProtocolError> {
        let Some(Kind::Scsi(scsi)) = exchange.tasks.get_mut(key).map(|t| &mut t.kind) else {
            broken!("an R2T for no command");
            return Ok(());
        };
        if scsi.trouble.get_or_insert_default().r2t.early(got) {
            self.ask_r2t(exchange, on, key)
        } else {
            Ok(())
        }
    }

    pub fn ask_r2t<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
    ) -> Result<(), ProtocolError> {
        let Some(scsi) = try_again(exchange, key)? else { return Ok(()) };
        let from = scsi.r2t_sn;
        self.snack(exchange, on, SnackType::DataR2t, (key.0, RESERVED_TAG), from, Lun::ZERO)
    }

    /// Acknowledges the Data-In received (RFC 7143 §11.16.1, DataACK).
    pub fn acknowledge_data<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        key: TaskKey,
        ttt: u32,
        lun: Lun,
    ) -> Result<(), ProtocolError> {
        let Some(Kind::Scsi(scsi)) = exchange.tasks.get(key).map(|t| &t.kind) else {
            broken!("data-in of no command");
            return Ok(());
        };
        let from = scsi.data_sn;
        self.snack(exchange, on, SnackType::DataAck, (key.0, ttt), from, lun)
    }

    pub fn snack<P: Payload, T>(
        &mut self,
        exchange: &mut Exchange<P, T>,
        on: ConnectionId,
        kind: SnackType,
        (itt, tag): (u32, u32),
        from: u32,
        lun: Lun,
    ) -> Result<(), ProtocolError> {
        let connection = exchange.links.get_mut(on);
        let connection = connection.ok_or(ProtocolError::NoConnection)?;
        let snack = Snack { kind, itt, tag, from, lun };
        // The newest DataACK of a task includes older ones.
        let same = |other: &Snack| (other.kind, other.itt, other.tag) == (kind, itt, tag);
        let older = connection.snacks.iter().position(|other| kind == SnackType::DataAck && same(other));
        match older {
            Some(at) => connection.snacks[at] = snack,
            None if connection.snacks.len() >= MAX_READY => return Err(ProtocolError::Flood),
            None => connection.snacks.push_back(snack),
        }
        let counted = &mut exchange.recoveries;
        *match kind {
            SnackType::Status => &mut counted.status_snacks,
            SnackType::DataAck => &mut counted.data_acks,
            SnackType::RData => &mut counted.r_data_snacks,
            SnackType::DataR2t => match exchange.tasks.get(TaskKey(itt)).map(|task| &task.kind) {
                Some(Kind::Scsi(scsi)) if scsi.read_len.is_none() => &mut counted.r2t_snacks,
                _ => &mut counted.data_snacks,
            },
        } += 1;
        Ok(())
    }
}

/// Counts one more request for what a command misses.
///
/// # Errors
/// Unrecoverable: it was requested [`MAX_TRIES`] times.
fn try_again<P: Payload, T>(
    exchange: &mut Exchange<P, T>,
    key: TaskKey,
) -> Result<Option<&mut Scsi<P>>, ProtocolError> {
    let Some(Task { idle, tries, kind: Kind::Scsi(scsi), .. }) = exchange.tasks.get_mut(key) else {
        broken!("a missing PDU of no command");
        return Ok(None);
    };
    *idle = 0;
    *tries += 1;
    if *tries > MAX_TRIES { Err(ProtocolError::Unrecoverable) } else { Ok(Some(scsi)) }
}
