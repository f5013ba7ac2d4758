//! The bytes of the group's record.
//!
//! All numbers are big-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `staggrp` and a zero |
//! | 2 | the format that a reader needs: 1 |
//! | … | sections, ascending: tag (2 bytes), length (4 bytes), content |
//! | 4 | CRC-32C of all before |
//!
//! Gateways of two releases share the record. So a reader keeps sections that it does not know, and
//! writes them again as they were. A newer release puts what is new into sections of its own, and
//! never changes sections 1 to 5. It raises the needed format only if older releases must not go
//! on, and only after all members speak a version of the peer protocol that knows of it.
//!
//! Never allocates more than the bytes justify.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{Epoch, GatewayId, InstanceId, UnitId};
use crate::record::{self, FENCES, Fence, Member, Next, Place, Record, Standing};

/// The format that this release writes, and the newest that it reads.
pub const FORMAT: u16 = 1;
/// The most bytes of a record.
pub const MOST: usize = 1 << 20;
/// The most bytes of sections that this release does not know.
const KEPT: usize = 256 << 10;

const MAGIC: &[u8; 8] = b"staggrp\0";
const HEAD: usize = MAGIC.len() + 2;
const CHECKSUM: usize = 4;

const MEMBERS: u16 = 1;
const PLACES: u16 = 2;
const BARRIER: u16 = 4;
const FENCED: u16 = 5;

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They are something else.
    #[error("the object is no record of a group of gateways: give the group another name")]
    Foreign,
    /// A newer release has written them.
    #[error(
        "the group's record has format {needs}, and this release reads up to {FORMAT}: upgrade this gateway"
    )]
    Newer {
        /// The format that a reader needs.
        needs: u16,
    },
    /// They were changed, or are incomplete.
    #[error(
        "the group's record is damaged at byte {at} ({what}): end all gateways of the group, remove the \
         object, and start them again"
    )]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: usize,
    },
}

/// The checksum of a record's other bytes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The bytes of a record within the bounds that [`Record::join`] and [`Record::add`] hold.
#[must_use]
pub fn encode(record: &Record) -> Vec<u8> {
    let mut sections = record.kept.clone();
    sections.insert(MEMBERS, members(&record.members));
    sections.insert(PLACES, places(&record.places));
    sections.insert(BARRIER, record.barrier.0.to_be_bytes().to_vec());
    sections.insert(FENCED, fences(&record.fences));
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_be_bytes());
    for (tag, content) in sections {
        bytes.extend(tag.to_be_bytes());
        bytes.extend((content.len() as u32).to_be_bytes());
        bytes.extend(content);
    }
    bytes.extend(checksum(&bytes).to_be_bytes());
    bytes
}

fn members(members: &BTreeMap<GatewayId, Member>) -> Vec<u8> {
    let mut bytes = (members.len() as u16).to_be_bytes().to_vec();
    for (id, member) in members {
        bytes.extend(id.0.to_be_bytes());
        bytes.extend(member.instance.0.to_be_bytes());
        bytes.extend(member.protocol.start().to_be_bytes());
        bytes.extend(member.protocol.end().to_be_bytes());
        bytes.extend(member.secret.to_be_bytes());
        let (standing, by) = match member.standing {
            Standing::Serving => (0, 0),
            Standing::Leaving => (1, 0),
            Standing::Fencing { by } => (2, by.0),
        };
        bytes.push(standing);
        bytes.extend(by.to_be_bytes());
        bytes.push(member.addresses.len() as u8);
        for address in &member.addresses {
            bytes.push(address.len() as u8);
            bytes.extend(address.as_bytes());
        }
    }
    bytes
}

fn places(places: &BTreeMap<UnitId, Place>) -> Vec<u8> {
    let mut bytes = (places.len() as u32).to_be_bytes().to_vec();
    for (unit, place) in places {
        let (kind, from, to) = match *place {
            Place::Vacant => (0, 0, 0),
            Place::Owned { by } => (1, by.0, 0),
            Place::Moving { from, to: Next::Gateway(to) } => (2, from.0, to.0),
            Place::Moving { from, to: Next::Vacant } => (3, from.0, 0),
            Place::Moving { from, to: Next::Removed } => (4, from.0, 0),
        };
        bytes.extend(unit.0.to_be_bytes());
        bytes.push(kind);
        bytes.extend(from.to_be_bytes());
        bytes.extend(to.to_be_bytes());
    }
    bytes
}

fn fences(fences: &VecDeque<Fence>) -> Vec<u8> {
    let mut bytes = vec![fences.len() as u8];
    for fence in fences {
        bytes.extend(fence.gateway.0.to_be_bytes());
        bytes.extend(fence.instance.0.to_be_bytes());
        bytes.extend(fence.by.0.to_be_bytes());
        bytes.extend(fence.epoch.0.to_be_bytes());
    }
    bytes
}

/// The record that the bytes are.
///
/// # Errors
/// They are none that this release reads; the message says what to do.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    if !bytes.starts_with(MAGIC) {
        return Err(DecodeError::Foreign);
    }
    let damaged = |what, at| DecodeError::Damaged { what, at };
    if bytes.len() < HEAD + CHECKSUM || bytes.len() > MOST {
        return Err(damaged("its length", bytes.len()));
    }
    let (body, sum) = bytes.split_at(bytes.len() - CHECKSUM);
    if sum != checksum(body).to_be_bytes() {
        return Err(damaged("its checksum", body.len()));
    }
    let mut reader = Reader { bytes: body, at: MAGIC.len() };
    match reader.u16()? {
        0 => return Err(damaged("its format", MAGIC.len())),
        FORMAT => {}
        needs => return Err(DecodeError::Newer { needs }),
    }
    let mut record = Record::default();
    let (mut last, mut known, mut kept) = (0, 0, 0);
    while reader.at < body.len() {
        let start = reader.at;
        let (tag, len) = (reader.u16()?, reader.u32()? as usize);
        let content = reader.at;
        reader.take(len)?;
        if tag <= last {
            return Err(damaged("the order of sections", start));
        }
        last = tag;
        let mut section = Reader { bytes: &body[..content + len], at: content };
        match tag {
            MEMBERS => record.members = section.members()?,
            PLACES => record.places = section.places()?,
            BARRIER => record.barrier = Epoch(section.u32()?),
            FENCED => record.fences = section.fences()?,
            _ => {
                kept += len;
                if kept > KEPT {
                    return Err(damaged("too much of a newer release", start));
                }
                record.kept.insert(tag, section.take(len)?.to_vec());
                continue;
            }
        }
        known += 1;
        if section.at != section.bytes.len() {
            return Err(damaged("the length of a section", section.at));
        }
    }
    if known != 4 {
        return Err(damaged("a section is missing", body.len()));
    }
    Ok(record)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn damaged<T>(&self, what: &'static str) -> Result<T, DecodeError> {
        Err(DecodeError::Damaged { what, at: self.at })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => self.damaged("it ends too soon"),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn gateway(&mut self) -> Result<GatewayId, DecodeError> {
        self.u16().map(GatewayId)
    }

    fn instance(&mut self) -> Result<InstanceId, DecodeError> {
        self.array().map(u64::from_be_bytes).map(InstanceId)
    }

    /// A list of entries, ascending by their keys, at most `most`.
    fn entries<K: Ord + Copy, V>(
        &mut self,
        count: usize,
        most: usize,
        mut entry: impl FnMut(&mut Self) -> Result<(K, V), DecodeError>,
    ) -> Result<BTreeMap<K, V>, DecodeError> {
        if count > most {
            return self.damaged("too many entries");
        }
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let (key, value) = entry(self)?;
            if entries.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return self.damaged("the order of entries");
            }
            entries.insert(key, value);
        }
        Ok(entries)
    }

    fn members(&mut self) -> Result<BTreeMap<GatewayId, Member>, DecodeError> {
        let count = usize::from(self.u16()?);
        self.entries(count, record::MEMBERS, |reader| {
            let (id, instance) = (reader.gateway()?, reader.instance()?);
            let protocol = reader.u16()?..=reader.u16()?;
            let secret = reader.u32()?;
            let standing = match (reader.u8()?, reader.gateway()?) {
                (0, GatewayId(0)) => Standing::Serving,
                (1, GatewayId(0)) => Standing::Leaving,
                (2, by) => Standing::Fencing { by },
                _ => return reader.damaged("a member's standing"),
            };
            let count = usize::from(reader.u8()?);
            if count > record::ADDRESSES {
                return reader.damaged("too many addresses");
            }
            let addresses = (0..count).map(|_| reader.address()).collect::<Result<_, _>>()?;
            Ok((id, Member { instance, addresses, protocol, secret, standing }))
        })
    }

    fn address(&mut self) -> Result<String, DecodeError> {
        let len = usize::from(self.u8()?);
        let text = self.take(len)?;
        match std::str::from_utf8(text) {
            Ok(text) if len <= record::ADDRESS => Ok(text.to_owned()),
            _ => self.damaged("an address"),
        }
    }

    fn places(&mut self) -> Result<BTreeMap<UnitId, Place>, DecodeError> {
        let count = self.u32()? as usize;
        self.entries(count, record::PLACES, |reader| {
            let unit = UnitId(reader.u32()?);
            let (kind, from, to) = (reader.u8()?, reader.gateway()?, reader.gateway()?);
            let none = GatewayId(0);
            let place = match kind {
                0 if (from, to) == (none, none) => Place::Vacant,
                1 if to == none => Place::Owned { by: from },
                2 => Place::Moving { from, to: Next::Gateway(to) },
                3 if to == none => Place::Moving { from, to: Next::Vacant },
                4 if to == none => Place::Moving { from, to: Next::Removed },
                _ => return reader.damaged("a unit's place"),
            };
            Ok((unit, place))
        })
    }

    fn fences(&mut self) -> Result<VecDeque<Fence>, DecodeError> {
        let count = usize::from(self.u8()?);
        if count > FENCES {
            return self.damaged("too many fences");
        }
        (0..count)
            .map(|_| {
                let (gateway, instance, by) = (self.gateway()?, self.instance()?, self.gateway()?);
                Ok(Fence { gateway, instance, by, epoch: Epoch(self.u32()?) })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut record = Record::default();
        for id in 1..=3 {
            let member = Member {
                instance: InstanceId(u64::from(id) << 40),
                addresses: vec![format!("192.0.2.{id}:0/77"), "[2001:db8::1]:0/4294967295".into()],
                protocol: 1..=2,
                secret: 7,
                standing: Standing::Serving,
            };
            record.join(GatewayId(id), member).expect("a gateway joins");
        }
        for unit in 0..5 {
            record.add(UnitId(unit)).expect("there is room");
        }
        record.begin_move(UnitId(0), GatewayId(3)).expect("a move");
        record.remove(UnitId(1)).expect("it is served");
        record.begin_fence(GatewayId(2), GatewayId(1));
        record.end_fence(InstanceId(2 << 40), Epoch(99));
        record.begin_fence(GatewayId(3), GatewayId(1));
        record
    }

    /// With the checksum made right.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let body = bytes.len() - CHECKSUM;
        bytes.truncate(body);
        bytes.extend(checksum(&bytes).to_be_bytes());
        bytes
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in [Record::default(), sample()] {
            assert_eq!(decode(&encode(&record)), Ok(record));
        }
    }

    #[test]
    fn the_bytes_of_format_1_stay_as_they_are() {
        let mut record = Record { barrier: Epoch(0x0102_0304), ..Record::default() };
        record
            .places
            .insert(UnitId(9), Place::Moving { from: GatewayId(1), to: Next::Gateway(GatewayId(2)) });
        let mut expected = b"staggrp\0\0\x01".to_vec();
        expected.extend(b"\0\x01\0\0\0\x02\0\0");
        expected.extend(b"\0\x02\0\0\0\x0d\0\0\0\x01\0\0\0\x09\x02\0\x01\0\x02");
        expected.extend(b"\0\x04\0\0\0\x04\x01\x02\x03\x04");
        expected.extend(b"\0\x05\0\0\0\x01\0");
        let bytes = encode(&record);
        assert_eq!(bytes[..bytes.len() - CHECKSUM], expected);
    }

    #[test]
    fn sections_of_a_newer_release_are_kept() {
        let mut newer = sample();
        newer.kept.insert(6, b"names".to_vec());
        newer.kept.insert(u16::MAX, Vec::new());
        let mut record = decode(&encode(&newer)).expect("it is a record");
        assert_eq!(record, newer);
        record.add(UnitId(77)).expect("there is room");
        assert_eq!(decode(&encode(&record)).expect("it is a record").kept, newer.kept);
    }

    #[test]
    fn a_format_that_this_release_does_not_know_asks_for_an_upgrade() {
        let mut bytes = encode(&sample());
        bytes[9] = 2;
        let error = decode(&sealed(bytes)).expect_err("it is newer");
        assert_eq!(error, DecodeError::Newer { needs: 2 });
        assert!(error.to_string().contains("upgrade this gateway"), "{error}");
    }

    #[test]
    fn another_object_is_told_from_damage() {
        assert_eq!(decode(b"rbd_header"), Err(DecodeError::Foreign));
        assert_eq!(decode(b""), Err(DecodeError::Foreign));
    }

    #[test]
    fn each_changed_or_missing_byte_is_damage_with_advice() {
        let bytes = encode(&sample());
        for at in MAGIC.len()..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            let error = decode(&changed).expect_err("it is damaged");
            assert!(error.to_string().contains("remove the object"), "{error}");
            assert!(matches!(decode(&bytes[..at]), Err(DecodeError::Damaged { .. })), "{at}");
        }
    }

    #[test]
    fn what_no_release_writes_is_damage_even_with_a_right_checksum() {
        let bytes = encode(&sample());
        for at in HEAD..bytes.len() - CHECKSUM {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            match decode(&sealed(changed.clone())) {
                Ok(record) => assert_eq!(encode(&record), sealed(changed), "byte {at}"),
                Err(error) => assert!(matches!(error, DecodeError::Damaged { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn a_group_takes_no_more_than_its_record_can_hold() {
        let mut record = Record::default();
        let member = |id: u16| Member {
            instance: InstanceId(id.into()),
            addresses: vec!["x".repeat(record::ADDRESS); record::ADDRESSES],
            protocol: 1..=1,
            secret: 1,
            standing: Standing::Serving,
        };
        for id in 0..record::MEMBERS as u16 {
            assert_eq!(record.join(GatewayId(id), member(id)), Ok(()));
        }
        assert_eq!(record.join(GatewayId(9_999), member(9_999)), Err(record::Refusal::Full));
        for unit in 0..record::PLACES as u32 {
            record.places.insert(UnitId(unit), Place::Vacant);
        }
        assert_eq!(record.add(UnitId(u32::MAX)), Err(record::Refusal::Full));
        let bytes = encode(&record);
        assert!(bytes.len() < MOST / 2, "{} bytes", bytes.len());
        assert_eq!(decode(&bytes), Ok(record));
    }
}
