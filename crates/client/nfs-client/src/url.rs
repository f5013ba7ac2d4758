//! `nfs://host[:port]/path[?vers=3|4.1|4.2&uid=N&gid=N]`, as in RFC 2224, or `nfs+rdma://`; IPv6
//! hosts are in brackets, and `%XX` encodes any byte of the path.

use std::fmt;
use std::str::FromStr;

use crate::options::Transport;

/// The schemes.
const SCHEMES: [(&str, Transport); 2] = [("nfs://", Transport::Tcp), ("nfs+rdma://", Transport::Rdma)];

/// A version of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// RFC 1813.
    V3,
    /// RFC 8881.
    V41,
    /// RFC 7862.
    V42,
}

impl Version {
    /// All, the newest first.
    pub const ALL: [Version; 3] = [Version::V42, Version::V41, Version::V3];

    /// The minor version of version 4.
    pub(crate) fn minor(self) -> Option<u32> {
        match self {
            Version::V3 => None,
            Version::V41 => Some(1),
            Version::V42 => Some(2),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V3 => "3",
            Version::V41 => "4.1",
            Version::V42 => "4.2",
        })
    }
}

/// The address of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Transport of the calls.
    pub transport: Transport,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path from the server's root: begins with `/`, and without a `/` at its end.
    pub path: Vec<u8>,
    /// The version to use; `None` for the newest that the server has.
    pub version: Option<Version>,
    /// User ID of all calls.
    pub uid: Option<u32>,
    /// Group ID of all calls.
    pub gid: Option<u32>,
}

/// Error in the text of a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL does not begin with `nfs://` or `nfs+rdma://`.
    #[error("a URL begins with nfs:// or nfs+rdma://, as in nfs://host/export/path")]
    Scheme,
    /// The host is missing or malformed.
    #[error("the host is missing or malformed (an IPv6 address stands in brackets)")]
    Host,
    /// The port is invalid.
    #[error("the port is a number from 1 to 65535")]
    Port,
    /// A `%` without two hexadecimal digits, or a NUL.
    #[error("in a path, write % as %25, and ? as %3F")]
    Escape,
    /// A setting is unknown or has a bad value.
    #[error("no setting `{0}`: write vers=3, vers=4.1 or vers=4.2, uid=NUMBER, gid=NUMBER")]
    Setting(String),
}

/// The transport of a URL's scheme, and the text behind the scheme.
fn scheme(text: &str) -> Option<(Transport, &str)> {
    SCHEMES.iter().find_map(|(scheme, transport)| Some((*transport, text.strip_prefix(scheme)?)))
}

impl Url {
    /// Whether a text begins with the scheme of a URL of NFS.
    pub fn is_one(text: &str) -> bool {
        scheme(text).is_some()
    }

    /// The same server with another path.
    pub fn with_path(&self, path: Vec<u8>) -> Self {
        Url { path, ..self.clone() }
    }

    /// The same server with `name` below the path.
    pub fn join(&self, name: &[u8]) -> Self {
        let above = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        self.with_path([above, name].join(&b'/'))
    }

    /// The components of the path. Empty ones and `.` are left out.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or(UrlError::Escape)?;
        bytes.push(byte);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    if bytes.contains(&0) { Err(UrlError::Escape) } else { Ok(bytes) }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (transport, rest) = scheme(text).ok_or(UrlError::Scheme)?;
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match place.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or(UrlError::Host)?;
                let ip = host.split_once('%').map_or(host, |(ip, _)| ip);
                ip.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Host)?;
                match after.strip_prefix(':') {
                    None if !after.is_empty() => return Err(UrlError::Host),
                    port => (host, port),
                }
            }
            None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]".contains(c))
        {
            return Err(UrlError::Host);
        }
        let port = match port {
            None => transport.port(),
            Some(digits) => digits.parse().ok().filter(|port| *port != 0).ok_or(UrlError::Port)?,
        };
        let path = [b"/", unescape(path.trim_end_matches('/'))?.as_slice()].concat();
        let host = host.to_owned();
        let mut url = Url { transport, host, port, path, version: None, uid: None, gid: None };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let wrong = || UrlError::Setting(setting.to_owned());
            let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
            match key {
                "vers" => {
                    let found = Version::ALL.into_iter().find(|version| version.to_string() == value);
                    url.version = Some(found.ok_or_else(wrong)?);
                }
                "uid" => url.uid = Some(value.parse().map_err(|_| wrong())?),
                "gid" => url.gid = Some(value.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(url)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.transport {
            Transport::Tcp => "nfs://",
            Transport::Rdma => "nfs+rdma://",
        })?;
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if self.port != self.transport.port() {
            write!(f, ":{}", self.port)?;
        }
        for chunk in self.path.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '%' => f.write_str("%25")?,
                    '?' => f.write_str("%3F")?,
                    c if c.is_control() => write!(f, "%{:02X}", u32::from(c))?,
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
        }
        let settings = [
            self.version.map(|version| format!("vers={version}")),
            self.uid.map(|uid| format!("uid={uid}")),
            self.gid.map(|gid| format!("gid={gid}")),
        ];
        let mut before = '?';
        for setting in settings.into_iter().flatten() {
            write!(f, "{before}{setting}")?;
            before = '&';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_read_and_shown() {
        let text = "nfs://storage.example:99/data/a%3Fb%25/c d?vers=4.1&uid=7&gid=8";
        let url: Url = text.parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("storage.example", 99));
        assert_eq!((url.path.as_slice(), url.version), (&b"/data/a?b%/c d"[..], Some(Version::V41)));
        assert_eq!((url.uid, url.gid), (Some(7), Some(8)));
        assert_eq!(url.to_string(), text);
        assert_eq!(url.join(b"e").path, b"/data/a?b%/c d/e");
    }

    #[test]
    fn defaults_and_ipv6_are_understood() {
        let url: Url = "nfs://[2001:db8::1]".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_slice()), ("2001:db8::1", 2049, &b"/"[..]));
        assert_eq!(url.to_string(), "nfs://[2001:db8::1]/");
        assert_eq!(url.join(b"a").path, b"/a");
        let url: Url = "nfs+rdma://host/a".parse().unwrap();
        assert_eq!((url.transport, url.port), (Transport::Rdma, 20049));
        assert_eq!(url.to_string(), "nfs+rdma://host/a");
        let url: Url = "nfs://host//data//x/./y//".parse().unwrap();
        assert_eq!(url.components().collect::<Vec<_>>(), [&b"data"[..], b"x", b"y"]);
    }

    #[test]
    fn faults_are_named() {
        for (text, want) in [
            ("host/data", UrlError::Scheme),
            ("nfs:///data", UrlError::Host),
            ("nfs://[::1", UrlError::Host),
            ("nfs://h:0/x", UrlError::Port),
            ("nfs://h/100%", UrlError::Escape),
            ("nfs://h/a%00", UrlError::Escape),
            ("nfs://h/a?vers=4", UrlError::Setting("vers=4".into())),
            ("nfs://h/a?color", UrlError::Setting("color".into())),
        ] {
            assert_eq!(text.parse::<Url>(), Err(want), "{text}");
        }
    }
}
