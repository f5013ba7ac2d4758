//! Sense data descriptors of an OSD's own: which object, which functions ended, which attributes,
//! the response's integrity.
//!
//! Owns those descriptors only; sense key, codes, field pointers and the rest are `scsi`'s, behind
//! which these are sent.

use crate::bytes::Fields;
use crate::{AttributeId, Id, Page};

/// Additional sense codes (ASC, ASCQ) that object-based devices use.
pub mod code {
    crate::bytes::constants! { (u8, u8):
        AUDIT_FROZEN = (0x24, 0x04) => "SECURITY AUDIT VALUE FROZEN.",
        WORKING_KEY_FROZEN = (0x24, 0x05) => "SECURITY WORKING KEY FROZEN.",
        NONCE_NOT_UNIQUE = (0x24, 0x06) => "NONCE NOT UNIQUE.",
        NONCE_TIMESTAMP_OUT_OF_RANGE = (0x24, 0x07) => "NONCE TIMESTAMP OUT OF RANGE.",
        INVALID_DATA_OUT_ICV = (0x26, 0x0F) => "INVALID DATA-OUT BUFFER INTEGRITY CHECK VALUE.",
        NOT_EMPTY = (0x2C, 0x0A) => "PARTITION OR COLLECTION CONTAINS USER OBJECTS.",
        READ_PAST_END = (0x3B, 0x17) => "READ PAST END OF USER OBJECT.",
        QUOTA = (0x55, 0x07) => "QUOTA ERROR.",
    }
}

/// Functions of a command, bits of NOT INITIATED and COMPLETED COMMAND FUNCTIONS.
pub mod function {
    crate::bytes::constants! { u32:
        VALIDATION = 0x8000_0000 => "VALIDATION of the CDB.",
        COMMAND_CAPABILITY = 0x2000_0000 => "CMD_CAP_V: the capability, for the command.",
        COMMAND = 0x1000_0000 => "COMMAND itself.",
        IMPLICIT_SET = 0x0010_0000 => "IMP_ST_ATT: attributes that the command sets by itself.",
        SET_CAPABILITY = 0x0000_2000 => "SA_CAP_V: the capability, for setting attributes.",
        SET_ATTRIBUTES = 0x0000_1000 => "SET_ATT: setting attributes.",
        GET_CAPABILITY = 0x0000_0020 => "GA_CAP_V: the capability, for getting attributes.",
        GET_ATTRIBUTES = 0x0000_0010 => "GET_ATT: getting attributes.",
    }
}

/// Descriptor types.
mod kind {
    pub const OBJECT: u8 = 0x06;
    pub const RESPONSE_ICV: u8 = 0x07;
    pub const ATTRIBUTES: u8 = 0x08;
}

/// The most attributes that one descriptor names.
pub const MAX_ATTRIBUTES: usize = 8;

/// Sense data descriptors of an OSD's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// OSD error identification (06h).
    Object {
        /// NOT INITIATED COMMAND FUNCTIONS: see [`function`].
        not_initiated: u32,
        /// COMPLETED COMMAND FUNCTIONS.
        completed: u32,
        /// The object that the error is about.
        id: Id,
    },
    /// OSD response integrity check value (07h), 20 or 32 bytes.
    ResponseIcv(Vec<u8>),
    /// OSD attribute identification (08h): the attributes that the error is about;
    /// [`MAX_ATTRIBUTES`] of them are sent.
    Attributes(Vec<AttributeId>),
}

impl Descriptor {
    /// The descriptor, its type and length included.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Object { not_initiated, completed, id } => {
                let mut body = vec![0; 6];
                body.extend(not_initiated.to_be_bytes());
                body.extend(completed.to_be_bytes());
                body.extend(id.partition.to_be_bytes());
                body.extend(id.object.to_be_bytes());
                (kind::OBJECT, body)
            }
            Self::ResponseIcv(icv) => (kind::RESPONSE_ICV, icv[..icv.len().min(32)].to_vec()),
            Self::Attributes(attributes) => {
                let mut body = vec![0; 6];
                for attribute in attributes.iter().take(MAX_ATTRIBUTES) {
                    body.extend(attribute.page.0.to_be_bytes());
                    body.extend(attribute.number.to_be_bytes());
                }
                (kind::ATTRIBUTES, body)
            }
        };
        let mut out = vec![kind, body.len() as u8]; // at most 70
        out.extend(body);
        out
    }

    /// Reads the OSD's descriptors among `bytes`, a run of sense data descriptors; others are
    /// skipped, and so is an end that is cut short.
    pub fn parse_all(bytes: &[u8]) -> Vec<Self> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while let [kind, len, tail @ ..] = rest {
            let Some((body, next)) = tail.split_at_checked(usize::from(*len)) else { break };
            let f = Fields(body);
            match *kind {
                kind::OBJECT if body.len() >= 30 => out.push(Self::Object {
                    not_initiated: f.u32(6),
                    completed: f.u32(10),
                    id: Id::new(f.u64(14), f.u64(22)),
                }),
                kind::RESPONSE_ICV => out.push(Self::ResponseIcv(body.to_vec())),
                kind::ATTRIBUTES => out.push(Self::Attributes(
                    body.get(6..)
                        .unwrap_or_default()
                        .chunks_exact(8)
                        .map(|pair| {
                            let f = Fields(pair);
                            AttributeId::new(Page(f.u32(0)), f.u32(4))
                        })
                        .collect(),
                )),
                _ => {}
            }
            rest = next;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_objects_descriptor_is_32_bytes_long() {
        let descriptor = Descriptor::Object {
            not_initiated: function::COMMAND | function::GET_ATTRIBUTES,
            completed: function::VALIDATION,
            id: Id::new(0x10000, 0x10001),
        };
        let bytes = descriptor.emit();
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[..2], [0x06, 0x1E]);
        // Offsets of the whole descriptor: 8, 12, 16 and 24.
        assert_eq!(bytes[8..16], [0x10, 0, 0, 0x10, 0x80, 0, 0, 0]);
        assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(Descriptor::parse_all(&bytes), [descriptor]);
    }

    #[test]
    fn a_run_of_descriptors_is_read_past_those_of_others() {
        let attributes = Descriptor::Attributes(vec![AttributeId::new(Page(1), 0x82)]);
        let icv = Descriptor::ResponseIcv(vec![9; 32]);
        let mut bytes = vec![0x02, 0x06, 0, 0, 0xC0, 0, 24, 0];
        bytes.extend(attributes.emit());
        bytes.extend(icv.emit());
        assert_eq!(Descriptor::parse_all(&bytes), [attributes, icv]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            for descriptor in Descriptor::parse_all(&bytes) {
                let again = Descriptor::parse_all(&descriptor.emit());
                prop_assert_eq!(again.len(), 1);
            }
        }
    }
}
