//! Attributes (RFC 4171 §6): a tag, a length and a value, padded to four bytes.

use std::net::{IpAddr, Ipv6Addr};

use crate::Malformed;

/// The longest value that is written, bytes; names and aliases are shorter.
const MAX_VALUE: usize = 256;

/// The type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u32);

#[allow(missing_docs, reason = "their names are the RFC's")]
impl Tag {
    pub const DELIMITER: Tag = Tag(0);
    /// Identifies the network entity.
    pub const ENTITY_IDENTIFIER: Tag = Tag(1);
    pub const ENTITY_PROTOCOL: Tag = Tag(2);
    pub const TIMESTAMP: Tag = Tag(4);
    /// Lifetime of a registration, seconds.
    pub const REGISTRATION_PERIOD: Tag = Tag(6);
    pub const PORTAL_IP_ADDRESS: Tag = Tag(16);
    pub const PORTAL_TCP_UDP_PORT: Tag = Tag(17);
    /// Seconds between Entity Status Inquiries.
    pub const ESI_INTERVAL: Tag = Tag(19);
    pub const ESI_PORT: Tag = Tag(20);
    pub const SCN_PORT: Tag = Tag(23);
    pub const ISCSI_NAME: Tag = Tag(32);
    pub const ISCSI_NODE_TYPE: Tag = Tag(33);
    pub const ISCSI_ALIAS: Tag = Tag(34);
    pub const ISCSI_SCN_BITMAP: Tag = Tag(35);
    pub const PG_ISCSI_NAME: Tag = Tag(48);
    pub const PG_PORTAL_IP_ADDRESS: Tag = Tag(49);
    pub const PG_PORTAL_TCP_UDP_PORT: Tag = Tag(50);
    pub const PORTAL_GROUP_TAG: Tag = Tag(51);
}

/// Values of [`Tag::ENTITY_PROTOCOL`]: iSCSI.
pub const PROTOCOL_ISCSI: u32 = 2;
/// Bits of [`Tag::ISCSI_NODE_TYPE`] (RFC 4171 §6.4.2).
pub const NODE_TARGET: u32 = 1;
/// See [`NODE_TARGET`].
pub const NODE_INITIATOR: u32 = 2;

/// Bits of [`Tag::ISCSI_SCN_BITMAP`] (RFC 4171 §6.4.4).
pub mod scn {
    /// An object was updated.
    pub const UPDATED: u32 = 0x04;
    /// An object was added.
    pub const ADDED: u32 = 0x08;
    /// An object was removed.
    pub const REMOVED: u32 = 0x10;
    /// Only events of targets, and of the node itself.
    pub const TARGETS_AND_SELF: u32 = 0x40;
    /// Only events of initiators, and of the node itself.
    pub const INITIATORS_AND_SELF: u32 = 0x80;
}

/// A received attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The attribute's type.
    pub tag: Tag,
    /// The value; empty if the attribute is only a tag.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The value as a number.
    pub fn number(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.value.try_into().ok()?))
    }

    /// The value as text, up to its NUL.
    pub fn text(&self) -> Option<&'a str> {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        std::str::from_utf8(&self.value[..end]).ok()
    }

    /// The value as an IP address (RFC 4171 §6.3.1): IPv4 addresses are mapped into IPv6.
    pub fn address(&self) -> Option<IpAddr> {
        let bytes: [u8; 16] = self.value.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).to_canonical())
    }

    /// The value as a TCP port; `None` for a UDP port.
    pub fn tcp_port(&self) -> Option<u16> {
        u16::try_from(self.number()?).ok()
    }
}

/// The attributes of a payload, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Attributes { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let cut = || {
            let (head, rest) = self.rest.split_at_checked(8)?;
            let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let len = usize::try_from(word(4)).ok().filter(|len| len % 4 == 0)?;
            let (value, rest) = rest.split_at_checked(len)?;
            Some((Attribute { tag: Tag(word(0)), value }, rest))
        };
        let Some((attribute, rest)) = cut() else {
            self.rest = &[];
            return Some(Err(Malformed::Length));
        };
        self.rest = rest;
        Some(Ok(attribute))
    }
}

/// Builds a list of attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends an attribute; truncates a value that is too long.
    pub fn put(&mut self, tag: Tag, value: &[u8]) -> &mut Self {
        let value = &value[..value.len().min(MAX_VALUE)];
        let padded = value.len().next_multiple_of(4);
        self.bytes.extend_from_slice(&tag.0.to_be_bytes());
        self.bytes.extend_from_slice(&(padded as u32).to_be_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len() + padded - value.len(), 0);
        self
    }

    /// Appends a tag without a value: a query, or a NULL.
    pub fn tag(&mut self, tag: Tag) -> &mut Self {
        self.put(tag, &[])
    }

    /// Appends a number.
    pub fn number(&mut self, tag: Tag, value: u32) -> &mut Self {
        self.put(tag, &value.to_be_bytes())
    }

    /// Appends text with its NUL; truncates it at a NUL.
    pub fn text(&mut self, tag: Tag, value: &str) -> &mut Self {
        let mut bytes: Vec<u8> = value.bytes().take_while(|byte| *byte != 0).take(MAX_VALUE - 1).collect();
        bytes.push(0);
        self.put(tag, &bytes)
    }

    /// Appends an IP address.
    pub fn address(&mut self, tag: Tag, value: IpAddr) -> &mut Self {
        let v6 = match value {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.put(tag, &v6.octets())
    }
}
