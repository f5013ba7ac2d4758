//! Commands of reservations as bytes, and their data (SPC-4 §6.15, §6.16, §7.6.4).

use std::collections::BTreeSet;

use iscsi_client::{Command, Lun, Response};
use scsi::cdb::build::{self, Flags};
use scsi::{Sense, SenseKey, Status};

use super::model::{Key, Nexus, Outcome, Ports, Request, Whom};
use crate::oracle::OpId;

/// Bytes of a block.
const BLOCK: usize = 512;

/// ISID of every initiator port: each has a name of its own.
pub(super) const ISID: [u8; 6] = [0x80, 0, 0, 0x12, 0x34, 0x56];
/// Bytes of data that a PERSISTENT RESERVE IN asks for.
const MOST_DATA: u32 = 2048;

/// InitiatorName of an initiator port.
pub(super) fn name(initiator: usize) -> String {
    format!("iqn.2026-01.example.sim:{initiator}")
}

/// RELATIVE TARGET PORT IDENTIFIER, the target portal group tag.
pub(super) fn target_port(target: usize) -> u16 {
    1 + target as u16
}

/// The TransportID of an iSCSI initiator port (§7.6.4.6).
fn transport_id(initiator: usize) -> Vec<u8> {
    let isid: String = ISID.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!("{},i,0x{isid}", name(initiator)).into_bytes();
    text.push(0);
    text.resize(text.len().next_multiple_of(4).max(20), 0);
    [&[0x45, 0], &(text.len() as u16).to_be_bytes()[..], &text].concat()
}

/// A parameter list with RESERVATION KEY and SERVICE ACTION RESERVATION KEY.
fn keys(key: Key, action_key: Key) -> Vec<u8> {
    let mut list = vec![0; 24];
    (list[7], list[15]) = (key, action_key);
    list
}

/// The unit that commands are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ports: Ports,
    pub(crate) lun: u16,
    /// Each write has a block of its own.
    pub(crate) blocks: usize,
}

/// The end of a command.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Outcome(Outcome),
    /// A unit attention: it was not executed.
    Attention,
    /// It may have been executed, and is not any more.
    Unknown,
}

impl Place {
    /// The number of an operation's block.
    fn block(self, op: OpId) -> usize {
        op as usize % self.blocks
    }

    /// Whether a write has been executed, by the unit's content.
    pub(super) fn has(self, content: &[u8], op: OpId) -> bool {
        let at = self.block(op) * BLOCK;
        content.get(at..at + BLOCK) == Some(&stamp(op)[..])
    }
}

/// The command of a request.
pub(super) fn command(op: OpId, request: Request, place: Place) -> Command {
    let (ports, lun) = (place.ports, Lun::flat(place.lun).unwrap_or(Lun::ZERO));
    let out = |action: u8, kind: u8, list: Vec<u8>| {
        let cdb = build::persistent_reserve_out(action, kind, list.len() as u32);
        Command::new(lun, &cdb).writing(runtime::Buf::from(list))
    };
    let reading = |action: u8| {
        Command::new(lun, &build::persistent_reserve_in(action, MOST_DATA as u16)).reading(MOST_DATA)
    };
    match request {
        Request::Register { key, new, aptpl, force, whom } => {
            let mut list = keys(key, new);
            list[20] = u8::from(aptpl);
            match whom {
                Whom::Own => {}
                Whom::AllTargets => list[20] |= 0x04,
                Whom::Named(named) => {
                    list[20] |= 0x08;
                    let named = (0..ports.initiators).filter(|initiator| named >> initiator & 1 != 0);
                    let ids: Vec<u8> = named.flat_map(transport_id).collect();
                    list.extend((ids.len() as u32).to_be_bytes());
                    list.extend(ids);
                }
            }
            out(if force { 6 } else { 0 }, 0, list)
        }
        Request::Move { key, new, to, unregister, aptpl } => {
            let id = transport_id(ports.initiator(to));
            let mut list = keys(key, new);
            list[17] = u8::from(unregister) << 1 | u8::from(aptpl);
            list[18..20].copy_from_slice(&target_port(ports.target(to)).to_be_bytes());
            list[20..24].copy_from_slice(&(id.len() as u32).to_be_bytes());
            list.extend(id);
            out(7, 0, list)
        }
        Request::Reserve { key, kind } => out(1, kind, keys(key, 0)),
        Request::Release { key, kind } => out(2, kind, keys(key, 0)),
        Request::Clear { key } => out(3, 0, keys(key, 0)),
        Request::Preempt { key, victim, kind, abort } => out(4 + u8::from(abort), kind, keys(key, victim)),
        Request::TestUnitReady => Command::new(lun, &build::test_unit_ready()),
        Request::ReadKeys => reading(0),
        Request::ReadReservation => reading(1),
        Request::ReadFullStatus => reading(3),
        Request::Read => {
            let cdb = build::read10(place.block(op) as u32, 1, Flags::default());
            Command::new(lun, &cdb).reading(512)
        }
        Request::Write => {
            let cdb = build::write10(place.block(op) as u32, 1, Flags::default());
            Command::new(lun, &cdb).writing(runtime::Buf::from(stamp(op).to_vec()))
        }
    }
}

/// The content of a write's block.
fn stamp(op: OpId) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&op.to_be_bytes()));
    block
}

/// Reads an answer.
pub(super) fn answer(request: Request, response: &Response, ports: Ports) -> Result<Answer, String> {
    let sense = Sense::parse(&response.sense);
    let code = sense.map(|sense| (sense.key, sense.additional.asc, sense.additional.ascq));
    match (Status::from_code(response.status), code) {
        (Some(Status::Good), _) => {}
        (Some(Status::ReservationConflict), _) => return Ok(Answer::Outcome(Outcome::Conflict)),
        (_, Some((SenseKey::UnitAttention, 0x29 | 0x2a | 0x2f | 0x3f, _))) => return Ok(Answer::Attention),
        (_, Some((SenseKey::IllegalRequest, asc, ascq))) => {
            return Ok(Answer::Outcome(Outcome::Refused(asc, ascq)));
        }
        (_, Some((SenseKey::AbortedCommand | SenseKey::NotReady, ..))) => return Ok(Answer::Unknown),
        _ => return Err(format!("status {:#04x} with sense {:02x?}", response.status, response.sense)),
    }
    let data = response.data.to_vec();
    // PRGENERATION and ADDITIONAL LENGTH precede the list (SPC-4 §6.15).
    let list = || data.get(8..).unwrap_or_default();
    Ok(Answer::Outcome(match request {
        Request::ReadKeys => {
            let mut keys: Vec<Key> = list().chunks(8).filter_map(|key| key.last().copied()).collect();
            keys.sort_unstable();
            Outcome::Keys(keys)
        }
        Request::ReadReservation => {
            Outcome::Held(list().get(7).zip(list().get(13)).map(|(key, kind)| (*key, *kind)))
        }
        Request::ReadFullStatus => Outcome::Full(full_status(list(), ports)?),
        _ => Outcome::Good,
    }))
}

/// Reads the descriptors of READ FULL STATUS. One with ALL_TG_PT stands for all target ports.
fn full_status(mut list: &[u8], ports: Ports) -> Result<BTreeSet<(Nexus, Key, u8)>, String> {
    let mut all = BTreeSet::new();
    while let Some((fixed, rest)) = list.split_at_checked(24) {
        let len = u32::from_be_bytes([fixed[20], fixed[21], fixed[22], fixed[23]]) as usize;
        let (id, rest) = rest.split_at_checked(len).ok_or("READ FULL STATUS data is cut off")?;
        list = rest;
        let initiator = (0..ports.initiators).find(|initiator| transport_id(*initiator) == id);
        let initiator = initiator.ok_or_else(|| format!("a TransportID that nobody has: {id:02x?}"))?;
        let kind = if fixed[12] & 1 != 0 { fixed[13] } else { 0 };
        let through = u16::from_be_bytes([fixed[18], fixed[19]]);
        let targets = (0..ports.targets).filter(|t| fixed[12] & 2 != 0 || target_port(*t) == through);
        all.extend(targets.map(|target| (ports.nexus(initiator, target), fixed[7], kind)));
    }
    Ok(all)
}
