//! iSNS (RFC 4171): `stag serve` registers its targets with a server, and `stag ls --isns` asks
//! one.
//!
//! [`agent`] keeps the registration true on a thread of its own, [`inquiries`] answers the server
//! there, [`link`] talks to it. None of it is in the path of I/O: a server that is down, slow or
//! hostile costs retries and log lines, and nothing else.

pub mod agent;
mod inquiries;
mod link;

pub use agent::Agent;
pub use link::{LinkError, discover};

/// `HOST[:PORT]` as a server is connected to, with iSNS's port if none is named; an IPv6 address
/// stands in brackets.
pub fn server(text: &str) -> Option<String> {
    let address = iscsi::discovery::TargetAddress::parse(text)?;
    if address.portal_group_tag.is_some() {
        return None;
    }
    let named = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.contains('[') || host.ends_with(']') && !port.is_empty());
    let port = if named { address.port } else { isns::PORT };
    Some(iscsi::discovery::TargetAddress { port, ..address }.to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_server_has_the_port_of_isns_if_none_is_named() {
        let server = |text| super::server(text);
        assert_eq!(server("host").as_deref(), Some("host:3205"));
        assert_eq!(server("host:3260").as_deref(), Some("host:3260"));
        assert_eq!(server("192.0.2.1:99").as_deref(), Some("192.0.2.1:99"));
        assert_eq!(server("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:3205"));
        assert_eq!(server("[2001:db8::1]:99").as_deref(), Some("[2001:db8::1]:99"));
        assert_eq!(server("host,1"), None);
        assert_eq!(server(""), None);
    }
}
