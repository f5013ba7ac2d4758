//! SendTargets (RFC 7143 Appendix C): the request, the records of the answer, and parsing of both.
//! The target decides elsewhere which targets an initiator may see.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::name;
use crate::text::{MAX_VALUE_LEN, Pairs, TextBuf, TextError};

/// The well-known port of iSCSI.
pub const DEFAULT_PORT: u16 = 3260;
/// The maximum length of a host name, bytes (RFC 1035 §2.3.4).
const MAX_HOST_LEN: usize = 253;
/// The maximum number of records and addresses that [`read_records`] returns.
pub const MAX_RECORDS: usize = 65_536;

/// The value of a `SendTargets` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendTargets<'a> {
    /// `All`: in discovery sessions only.
    All,
    /// The target of this normal session: an empty value.
    This,
    /// One target by name.
    Named(&'a str),
}

impl<'a> SendTargets<'a> {
    /// Parses the value; `None` if it is neither `All`, empty nor an iSCSI name.
    pub fn parse(value: &'a str) -> Option<Self> {
        match value {
            "All" => Some(SendTargets::All),
            "" => Some(SendTargets::This),
            other => name::check_received(other).is_ok().then_some(SendTargets::Named(other)),
        }
    }
}

/// A portal in the syntax of `TargetAddress`: host, port and portal group tag (RFC 7143 §13.8).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    /// A DNS name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Portal group tag; `None` in a redirection.
    pub portal_group_tag: Option<u16>,
}

impl TargetAddress {
    /// The portal at a socket address.
    pub fn new(addr: SocketAddr, portal_group_tag: u16) -> Self {
        TargetAddress {
            host: addr.ip().to_canonical().to_string(),
            port: addr.port(),
            portal_group_tag: Some(portal_group_tag),
        }
    }

    /// Parses `host[:port][,tag]`, with an IPv6 host in brackets. Drops the zone of a link-local
    /// address.
    pub fn parse(value: &str) -> Option<Self> {
        if value.len() > MAX_VALUE_LEN {
            return None;
        }
        let (place, tag) = match value.rsplit_once(',') {
            Some((place, tag)) => (place, Some(tag.parse().ok()?)),
            None => (value, None),
        };
        let canonical;
        let (host, port) = if let Some(rest) = place.strip_prefix('[') {
            let (host, after) = rest.split_once(']')?;
            // The zone of a link-local address names an interface of the peer's own machine.
            let host = host.split_once('%').map_or(host, |(host, _)| host);
            // Canonical form makes equal addresses compare equal.
            canonical = host.parse::<std::net::Ipv6Addr>().ok()?.to_string();
            (canonical.as_str(), after.strip_prefix(':').or_else(|| after.is_empty().then_some("")))
        } else {
            match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, Some("")),
            }
        };
        let port = match port? {
            "" => DEFAULT_PORT,
            digits => digits.parse().ok()?,
        };
        let host_ok = (1..=MAX_HOST_LEN).contains(&host.len())
            && !host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]/@,".contains(c));
        host_ok.then(|| TargetAddress { host: host.to_owned(), port, portal_group_tag: tag })
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(v6)) => write!(f, "[{v6}]:{}", self.port)?,
            _ => write!(f, "{}:{}", self.host, self.port)?,
        }
        match self.portal_group_tag {
            Some(tag) => write!(f, ",{tag}"),
            None => Ok(()),
        }
    }
}

/// A target and its portals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The target's iSCSI name.
    pub name: String,
    /// The target's portals. If empty, the address that the request was sent to (RFC 7143 Appendix
    /// C).
    pub addresses: Vec<TargetAddress>,
}

impl Record {
    /// Appends the record to a response.
    pub fn put(&self, out: &mut TextBuf) {
        out.put("TargetName", &self.name);
        for address in &self.addresses {
            out.put("TargetAddress", &address.to_string());
        }
    }
}

/// Parses a response to `SendTargets`. Skips keys other than names and addresses, and invalid
/// addresses: a portal in a future syntax must not hide the others.
///
/// # Errors
/// A [`TextError`] if the text is malformed, or has more than [`MAX_RECORDS`] targets and
/// addresses.
pub fn read_records(text: &[u8]) -> Result<Vec<Record>, TextError> {
    let mut records: Vec<Record> = Vec::new();
    let mut kept = 0;
    for pair in Pairs::new(text) {
        let pair = pair?;
        kept += 1;
        if kept > MAX_RECORDS {
            return Err(TextError::TooLong);
        }
        match (pair.key, records.last_mut()) {
            ("TargetName", _) if name::check_received(pair.value).is_ok() => {
                records.push(Record { name: pair.value.to_owned(), addresses: Vec::new() });
            }
            ("TargetAddress", Some(record)) => record.addresses.extend(TargetAddress::parse(pair.value)),
            _ => {}
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_question_is_all_this_or_a_name() {
        assert_eq!(SendTargets::parse("All"), Some(SendTargets::All));
        assert_eq!(SendTargets::parse(""), Some(SendTargets::This));
        assert_eq!(
            SendTargets::parse("iqn.2026-01.org.x:a"),
            Some(SendTargets::Named("iqn.2026-01.org.x:a"))
        );
        assert_eq!(SendTargets::parse("all"), None);
    }

    #[test]
    fn a_host_that_no_name_can_be_is_no_portal() {
        assert_eq!(TargetAddress::parse("\u{1b}[2J:3260"), None, "it would reach a terminal");
        assert_eq!(TargetAddress::parse(&"h".repeat(254)), None);
        assert!(TargetAddress::parse(&"h".repeat(253)).is_some());
    }

    #[test]
    fn one_ipv6_address_in_two_spellings_is_one_portal() {
        let long = TargetAddress::parse("[2001:0DB8:0::0001]:3260,1");
        assert_eq!(long, TargetAddress::parse("[2001:db8::1],1"));
        assert_eq!(long.unwrap().to_string(), "[2001:db8::1]:3260,1");
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let records = vec![
            Record {
                name: "iqn.2026-01.org.example:a".into(),
                addresses: vec![
                    TargetAddress::new("192.0.2.1:3260".parse().unwrap(), 1),
                    TargetAddress::new("[2001:db8::1]:860".parse().unwrap(), 2),
                ],
            },
            Record { name: "iqn.2026-01.org.example:b".into(), addresses: vec![] },
        ];
        let mut out = TextBuf::new();
        records.iter().for_each(|r| r.put(&mut out));
        assert_eq!(
            out.as_bytes(),
            b"TargetName=iqn.2026-01.org.example:a\0TargetAddress=192.0.2.1:3260,1\0\
              TargetAddress=[2001:db8::1]:860,2\0TargetName=iqn.2026-01.org.example:b\0"
        );
        assert_eq!(read_records(out.as_bytes()), Ok(records));
    }

    #[test]
    fn addresses_have_defaults_and_limits() {
        let parse = |s| TargetAddress::parse(s).map(|a| (a.host, a.port, a.portal_group_tag));
        assert_eq!(parse("storage.example"), Some(("storage.example".into(), 3260, None)));
        assert_eq!(parse("[::1]"), Some(("::1".into(), 3260, None)));
        assert_eq!(parse("[fe80::1%eth0]:99,1"), Some(("fe80::1".into(), 99, Some(1))));
        assert_eq!(parse("192.0.2.1:99"), Some(("192.0.2.1".into(), 99, None)));
        for bad in ["", ":3260", "h:99999", "h:1,70000", "[::1", "[::1]x", "::1", "[h]:1", "a b:1", "h:1,"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_address_is_read_without_panic(s in "\\PC{0,30}|[\\[\\]:,0-9a-f]{0,20}") {
            let _ = TargetAddress::parse(&s);
        }
    }
}
