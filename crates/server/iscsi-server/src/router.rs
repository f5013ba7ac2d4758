//! Commands that a target answers itself: REPORT LUNS, and everything for units that do not exist.

use device::{Cdb, Outcome, TaskAttribute};
use iscsi::pdu::Lun;
use scsi::{Sense, UnitAttention};

use crate::lun_map::{Entry, LunMap};

const INQUIRY: u8 = 0x12;
const REQUEST_SENSE: u8 = 0x03;
const REPORT_LUNS: u8 = 0xa0;

/// PERIPHERAL QUALIFIER 011b and DEVICE TYPE 1Fh: there is no unit and can be none (SPC-4 §6.6.2).
const NO_UNIT: u8 = 0x7f;

/// The answer to a command that reaches no unit: its data-in and its outcome.
pub(crate) type Answer = (Vec<u8>, Outcome);

/// The unit that a command goes to, or else its answer.
#[inline]
pub(crate) fn route<'l>(luns: &LunMap, entry: Option<&'l Entry>, cdb: &Cdb) -> Result<&'l Entry, Answer> {
    match entry {
        Some(unit) if cdb.opcode() != REPORT_LUNS => Ok(unit),
        _ => Err(answer(luns, entry, cdb)),
    }
}

#[cold]
fn answer(luns: &LunMap, entry: Option<&Entry>, cdb: &Cdb) -> Answer {
    let cdb_bytes = cdb.bytes();
    match cdb.opcode() {
        REPORT_LUNS => report_luns(luns, entry, cdb_bytes),
        INQUIRY => match cdb_bytes[1] & 1 {
            0 => limited(absent_inquiry(), u16::from_be_bytes([cdb_bytes[3], cdb_bytes[4]]).into()),
            _ => (Vec::new(), Sense::invalid_field_in_cdb(1, Some(0)).into()),
        },
        REQUEST_SENSE => {
            let sense = Sense::logical_unit_not_supported();
            let bytes = if cdb_bytes[1] & 1 == 0 { sense.emit_fixed() } else { sense.emit_descriptor() };
            limited(bytes.to_vec(), cdb_bytes[4].into())
        }
        _ => (Vec::new(), Sense::logical_unit_not_supported().into()),
    }
}

/// SPC-4 §6.33.
fn report_luns(luns: &LunMap, entry: Option<&Entry>, cdb: &[u8]) -> Answer {
    if cdb.len() < 12 {
        return (Vec::new(), Sense::invalid_opcode().into());
    }
    let ordinary = || luns.iter().filter_map(|entry| Lun::new(entry.lun));
    let listed: Vec<Lun> = match cdb[2] {
        // Without, or with, well-known units; the only one is the unit asked here.
        0x00 | 0x10 | 0x11 => ordinary().collect(),
        0x01 => vec![Lun::REPORT_LUNS],
        0x02 => std::iter::once(Lun::REPORT_LUNS).chain(ordinary()).collect(),
        0x12 => Vec::new(),
        _ => return (Vec::new(), Sense::invalid_field_in_cdb(2, None).into()),
    };
    let room = u32::from_be_bytes([cdb[6], cdb[7], cdb[8], cdb[9]]);
    if room < 16 {
        return (Vec::new(), Sense::invalid_field_in_cdb(6, None).into());
    }
    // The initiator now knows what the unit attention reports (SPC-4 §6.33.1).
    if entry.is_some() {
        luns.iter().for_each(|entry| {
            // Most have no unit attention; the check takes no lock.
            if entry.nexus.verdict().attention() {
                entry.nexus.clear_attention(UnitAttention::ReportedLunsDataHasChanged);
            }
        });
    }
    let mut data = Vec::with_capacity(8 + 8 * listed.len());
    data.extend_from_slice(&(8 * listed.len() as u32).to_be_bytes());
    data.extend_from_slice(&[0; 4]);
    listed.iter().for_each(|lun| data.extend_from_slice(&lun.0));
    limited(data, room as usize)
}

fn absent_inquiry() -> Vec<u8> {
    let mut data = vec![0; 36];
    data[0] = NO_UNIT;
    data[2] = 6; // SPC-4
    data[3] = 2; // RESPONSE DATA FORMAT
    data[4] = 31; // ADDITIONAL LENGTH
    data[8..16].copy_from_slice(b"STAG    ");
    data[16..32].copy_from_slice(b"NO LOGICAL UNIT ");
    data[32..36].copy_from_slice(b"    ");
    data
}

/// Data cut to the ALLOCATION LENGTH, which is no error (SPC-4 §4.2.5.6).
fn limited(mut data: Vec<u8>, room: usize) -> Answer {
    data.truncate(room);
    let outcome = Outcome::read(data.len() as u64);
    (data, outcome)
}

/// The task attribute of RFC 7143 §11.3.1's ATTR field; untagged and unknown ones are SIMPLE.
#[inline]
pub(crate) fn attribute(code: u8) -> TaskAttribute {
    match code {
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;

    #[test]
    fn every_command_without_a_unit_has_an_answer() {
        let not_supported = Sense::logical_unit_not_supported();
        for opcode in 0..=u8::MAX {
            let mut bytes = [0; 16];
            (bytes[0], bytes[9]) = (opcode, 255);
            let cdb = Cdb::from_bytes(SmallVec::from_buf(bytes)).expect("a CDB");
            let Err((_, outcome)) = route(&LunMap::default(), None, &cdb) else {
                panic!("{opcode:#x}: a unit")
            };
            match opcode {
                INQUIRY | REQUEST_SENSE | REPORT_LUNS => assert_eq!(outcome.sense, None, "{opcode:#x}"),
                _ => assert_eq!(outcome.sense.as_deref(), Some(&not_supported), "{opcode:#x}"),
            }
        }
    }
}
