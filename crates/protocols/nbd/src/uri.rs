//! URIs of exports (NBD "The NBD Uniform Resource Indicator (URI) format", doc/uri.md; RFC 3986).

use std::fmt;
use std::str::FromStr;

use crate::wire::{MAX_STRING, PORT};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP: a name or an address (that of IPv6 without brackets), and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// The path of a Unix domain socket.
    Unix(String),
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The name of its export; empty for the default one.
    pub export: String,
}

/// Why a text names no export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Neither `nbd://` nor `nbd+unix://`.
    #[error("it begins neither with nbd:// nor with nbd+unix://")]
    Scheme,
    /// `nbds`, a user or a `tls-` parameter: all mean TLS.
    #[error("TLS is not supported")]
    Tls,
    /// No host between `nbd://` and the path.
    #[error("the host is missing")]
    NoHost,
    /// A host between `nbd+unix://` and the path.
    #[error("a Unix socket has no host: three slashes follow nbd+unix:")]
    Host,
    /// Not a host, or one with brackets that is no IPv6 address.
    #[error("`{0}` is no host")]
    BadHost(String),
    /// Not a port.
    #[error("`{0}` is no port")]
    Port(String),
    /// `nbd+unix:` without `?socket=PATH`.
    #[error("?socket=PATH is missing")]
    NoSocket,
    /// A parameter that is not known, or is there twice.
    #[error("the parameter `{0}` is unknown, or given twice")]
    Parameter(String),
    /// A `%` without two hexadecimal digits, a character that has to be written as `%XX`, bytes
    /// that are no UTF-8, or a NUL.
    #[error("`{0}` is not encoded as a URI asks for")]
    Encoding(String),
    /// An export's name longer than 4096 bytes.
    #[error("the name of the export is longer than 4096 bytes")]
    TooLong,
}

impl UriError {
    /// What to write instead.
    pub const INSTEAD: &str = "write nbd://HOST[:PORT]/EXPORT, or nbd+unix:///EXPORT?socket=PATH";
}

/// Whether a text claims to be a URI of an export, with or without TLS.
pub fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix")
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
        let is_unix = match scheme {
            "nbd" => false,
            "nbd+unix" => true,
            "nbds" | "nbds+unix" => return Err(UriError::Tls),
            _ => return Err(UriError::Scheme),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let export = decode(path.strip_prefix('/').unwrap_or(path))?;
        if export.len() > MAX_STRING {
            return Err(UriError::TooLong);
        }
        let socket = socket(query, is_unix)?;
        let address = match (socket, authority) {
            (Some(path), "") => Address::Unix(path),
            (Some(_), _) => return Err(UriError::Host),
            (None, _) if is_unix => return Err(UriError::NoSocket),
            (None, authority) => tcp(authority)?,
        };
        Ok(Self { address, export })
    }
}

impl fmt::Display for Uri {
    /// In one form for each export: the port only if it is another than usual, all encoded that
    /// need not stay.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (export, path) = (Encoded(&self.export), &self.address);
        match path {
            Address::Tcp { host, port } => {
                match host.contains(':') {
                    true => write!(f, "nbd://[{host}]")?,
                    false => write!(f, "nbd://{}", Encoded(host))?,
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")
            }
            Address::Unix(path) => write!(f, "nbd+unix:///{export}?socket={}", Encoded(path)),
        }
    }
}

/// The only parameter: the path of the socket.
fn socket(query: &str, is_unix: bool) -> Result<Option<String>, UriError> {
    let mut socket = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "socket" if is_unix && socket.is_none() => socket = Some(decode(value)?),
            name if name.starts_with("tls-") => return Err(UriError::Tls),
            name => return Err(UriError::Parameter(name.to_owned())),
        }
    }
    Ok(socket.filter(|path| !path.is_empty()))
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn tcp(authority: &str) -> Result<Address, UriError> {
    if authority.contains('@') {
        return Err(UriError::Tls);
    }
    let bad = || UriError::BadHost(authority.to_owned());
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(bad)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(bad)?) };
            (host.to_owned(), port)
        }
        None => {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            let host = decode(host)?;
            let is_host = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
            if !host.chars().all(is_host) {
                return Err(bad());
            }
            (host, port)
        }
    };
    if host.is_empty() {
        return Err(UriError::NoHost);
    }
    // RFC 3986 §3.2.3: an empty port is the usual one.
    let port = match port.filter(|port| !port.is_empty()) {
        None => PORT,
        Some(text) => {
            let digits = text.bytes().all(|digit| digit.is_ascii_digit());
            let port = text.parse().ok().filter(|port: &u16| *port != 0 && digits);
            port.ok_or_else(|| UriError::Port(text.to_owned()))?
        }
    };
    Ok(Address::Tcp { host, port })
}

/// Replaces each `%XX` by its byte.
fn decode(text: &str) -> Result<String, UriError> {
    let wrong = || UriError::Encoding(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            b'%' => {
                let (digits, behind) = behind.split_at_checked(2).ok_or_else(wrong)?;
                let digit = |digit: &u8| char::from(*digit).to_digit(16).ok_or_else(wrong);
                bytes.push((digit(&digits[0])? << 4 | digit(&digits[1])?) as u8);
                rest = behind;
            }
            b'#' | b'[' | b']' | b'?' | 0..=b' ' | 0x7f => return Err(wrong()),
            byte => bytes.push(*byte),
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    if text.contains('\0') { Err(wrong()) } else { Ok(text) }
}

/// Shows a text with all but RFC 3986's unreserved characters and slashes as `%XX`.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'-' | b'.' | b'_' | b'~' | b'/' => write!(f, "{}", char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(byte)),
            byte => write!(f, "%{byte:02X}"),
        })
    }
}
