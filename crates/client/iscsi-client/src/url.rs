//! `iscsi://[user[%secret]@]host[:port]/target-name/lun`, as in libiscsi and QEMU; IPv6 hosts are
//! in brackets. With `iser://` the same unit is accessed by RDMA.

use std::fmt;
use std::str::FromStr;

use iscsi::chap::{Credential, Secret};
use iscsi::discovery::DEFAULT_PORT;
use iscsi::name;

use crate::tune::{SettingError, Settings};

/// The transport of a session's PDUs and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// TCP (RFC 7143): `iscsi://`.
    #[default]
    Tcp,
    /// iSER (RFC 7145), over a queue pair: `iser://`.
    Iser,
}

impl Transport {
    const ALL: [Transport; 2] = [Transport::Tcp, Transport::Iser];

    /// The scheme of a URL, including `://`.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Tcp => "iscsi://",
            Transport::Iser => "iser://",
        }
    }
}

/// The address of a portal, a target or a unit.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// The transport to it.
    pub transport: Transport,
    /// CHAP name and secret. A URL on a command line is visible to everybody who lists processes:
    /// prefer [`crate::Options::chap`].
    pub credential: Option<Credential>,
    /// Host name or address, without brackets. An IPv6 link-local address includes its zone:
    /// `fe80::1%eth0`.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// TargetName.
    pub target: Option<String>,
    /// Logical unit number, 0 to 16383.
    pub lun: Option<u16>,
    /// The settings after a `?`, as `stag tune` writes them.
    pub settings: Settings,
}

/// Why a text is not a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The URL begins neither with `iscsi://` nor with `iser://`.
    #[error("a URL begins with iscsi:// or iser://, as in iscsi://host:3260/iqn.2026-01.org.example:disk/0")]
    Scheme,
    /// The host is missing or malformed.
    #[error("the host is missing or malformed (an IPv6 address stands in brackets)")]
    Host,
    /// The port is invalid.
    #[error("the port is a number from 1 to 65535")]
    Port,
    /// The target's name is not an iSCSI name.
    #[error("malformed target name: {0}")]
    Target(#[from] name::NameError),
    /// A LUN without a target.
    #[error("a logical unit number stands behind a target's name")]
    NoTarget,
    /// The LUN is invalid.
    #[error("the logical unit number is a number from 0 to 16383")]
    Lun,
    /// A setting after the `?` is invalid.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// There is text after the LUN.
    #[error("nothing may follow the logical unit number")]
    Rest,
}

impl Url {
    /// The URL of a portal, over TCP.
    pub fn portal(host: impl Into<String>, port: u16) -> Self {
        let (transport, host) = (Transport::Tcp, host.into());
        Url {
            transport,
            credential: None,
            host,
            port,
            target: None,
            lun: None,
            settings: Settings::default(),
        }
    }

    /// The same portal with a target and a unit.
    pub fn with_unit(&self, target: &str, lun: u16) -> Self {
        Url { target: Some(target.to_owned()), lun: Some(lun), ..self.clone() }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (transport, rest) = Transport::ALL
            .into_iter()
            .find_map(|transport| Some((transport, text.strip_prefix(transport.scheme())?)))
            .ok_or(UrlError::Scheme)?;
        let (rest, settings) = split_settings(rest);
        let settings = settings.map_or(Ok(Settings::default()), str::parse)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The secret may contain an @; the host cannot.
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let credential = login.map(|login| {
            let (user, secret) = login.split_once('%').unwrap_or((login, ""));
            Credential { name: user.to_owned(), secret: Secret::new(secret.as_bytes()) }
        });
        let (host, port) = if let Some(bracketed) = place.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or(UrlError::Host)?;
            // A link-local address includes its interface: fe80::1%eth0.
            let (ip, zone) = host.split_once('%').unwrap_or((host, "0"));
            ip.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Host)?;
            // The maximum length of an interface's name in Linux (IFNAMSIZ).
            if !(1..=15).contains(&zone.len()) || zone.contains(['%', '/', '[']) {
                return Err(UrlError::Host);
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(UrlError::Host),
            }
        } else {
            match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            }
        };
        if host.is_empty()
            || host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]".contains(c))
            || !place.starts_with('[') && host.contains('%')
        {
            return Err(UrlError::Host);
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(digits) => digits.parse().ok().filter(|p| *p != 0).ok_or(UrlError::Port)?,
        };
        let mut parts = path.splitn(3, '/');
        let target = parts.next().filter(|t| !t.is_empty());
        if let Some(target) = target {
            name::check_received(target)?;
        }
        let lun = match parts.next().filter(|l| !l.is_empty()) {
            None => None,
            Some(_) if target.is_none() => return Err(UrlError::NoTarget),
            Some(digits) => Some(digits.parse().ok().filter(|l| *l < 16384).ok_or(UrlError::Lun)?),
        };
        if parts.next().is_some_and(|rest| !rest.is_empty()) {
            return Err(UrlError::Rest);
        }
        let (host, target) = (host.to_owned(), target.map(str::to_owned));
        Ok(Url { transport, credential, host, port, target, lun, settings })
    }
}

/// Splits off the settings after a `?`. A secret before the host may contain one: only the part
/// after the last `@` counts.
fn split_settings(rest: &str) -> (&str, Option<&str>) {
    let host = rest.rfind('@').map_or(0, |at| at + 1);
    match rest[host..].find('?') {
        Some(at) => (&rest[..host + at], Some(&rest[host + at + 1..])),
        None => (rest, None),
    }
}

impl fmt::Display for Url {
    /// Omits the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.transport.scheme())?;
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
            if let Some(lun) = self.lun {
                write!(f, "/{lun}")?;
            }
        }
        if !self.settings.is_empty() {
            write!(f, "?{}", self.settings)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_number_without_a_target_is_refused() {
        assert_eq!("iscsi://host//7".parse::<Url>(), Err(UrlError::NoTarget));
        assert!("iscsi://host//".parse::<Url>().is_ok());
    }

    #[test]
    fn all_parts_are_read() {
        let url: Url =
            "iscsi://me%se@cret@storage.example:99/iqn.2026-01.org.example:disk/7".parse().unwrap();
        let credential = url.credential.as_ref().unwrap();
        assert_eq!((credential.name.as_str(), &credential.secret), ("me", &Secret::new(*b"se@cret")));
        assert_eq!((url.host.as_str(), url.port, url.lun), ("storage.example", 99, Some(7)));
        assert_eq!(url.to_string(), "iscsi://storage.example:99/iqn.2026-01.org.example:disk/7");
        assert!(!format!("{url:?}").contains("cret@"));
    }

    #[test]
    fn ipv6_and_defaults_are_understood() {
        let url: Url = "iscsi://[2001:db8::1]/iqn.2026-01.org.example:disk/0/".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.lun), ("2001:db8::1", 3260, Some(0)));
        assert_eq!(url.to_string(), "iscsi://[2001:db8::1]:3260/iqn.2026-01.org.example:disk/0");
        let portal: Url = "iscsi://127.0.0.1".parse().unwrap();
        assert_eq!((portal.target, portal.lun), (None, None));
    }

    #[test]
    fn a_link_local_address_names_its_interface() {
        let url: Url = "iscsi://[fe80::1%eth0]:99/iqn.2026-01.org.example:disk/0".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("fe80::1%eth0", 99));
        assert_eq!(url.to_string(), "iscsi://[fe80::1%eth0]:99/iqn.2026-01.org.example:disk/0");
        for wrong in [
            "iscsi://[fe80::1%]",
            "iscsi://[fe80::1%a%b]",
            "iscsi://[fe80::1%sixteen-letters-]",
            "iscsi://h%eth0",
        ] {
            assert_eq!(wrong.parse::<Url>(), Err(UrlError::Host), "{wrong}");
        }
    }

    #[test]
    fn the_scheme_chooses_the_transport_and_is_kept() {
        let url: Url = "iser://host/iqn.2026-01.org.example:disk/0".parse().unwrap();
        assert_eq!((url.transport, url.port), (Transport::Iser, 3260));
        assert_eq!(url.to_string(), "iser://host:3260/iqn.2026-01.org.example:disk/0");
        assert_eq!(url.with_unit("iqn.2026-01.org.example:b", 1).transport, Transport::Iser);
        let url: Url = "iscsi://host".parse().unwrap();
        assert_eq!(url.transport, Transport::Tcp);
        assert_eq!("iscsi.iser://host".parse::<Url>(), Err(UrlError::Scheme));
    }

    #[test]
    fn faults_are_named() {
        for (text, want) in [
            ("http://x/", UrlError::Scheme),
            ("iscsi:///iqn.2026-01.org.example:disk/0", UrlError::Host),
            ("iscsi://[::1/x", UrlError::Host),
            ("iscsi://[host]/x", UrlError::Host),
            ("iscsi://[::1]9/x", UrlError::Host),
            ("iscsi://h:0/", UrlError::Port),
            ("iscsi://h:70000/", UrlError::Port),
            ("iscsi://::1/", UrlError::Host),
            ("iscsi://h/disk/0", UrlError::Target(name::NameError::Type)),
            ("iscsi://h/iqn.2026-01.org.example:disk/16384", UrlError::Lun),
            ("iscsi://h/iqn.2026-01.org.example:disk/-1", UrlError::Lun),
            ("iscsi://h/iqn.2026-01.org.example:disk/0/1", UrlError::Rest),
        ] {
            assert_eq!(text.parse::<Url>(), Err(want), "{text}");
        }
    }
}
