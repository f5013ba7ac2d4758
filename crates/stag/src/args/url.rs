//! URLs of portals, targets and units: `iscsi://[USER[%SECRET]@]HOST[:PORT][/IQN[/LUN]]`, as libiscsi and QEMU write them.

use std::fmt;
use std::str::FromStr;

/// A place on an iSCSI network.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// CHAP name.
    pub user: Option<String>,
    /// CHAP secret. In a URL it is seen by everybody who lists processes; a file is better.
    pub secret: Option<String>,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The target's name.
    pub target: Option<String>,
    /// The unit's number.
    pub lun: Option<u16>,
}

/// Why a text is no URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It begins with something else.
    #[error("a URL of a unit begins with iscsi://, as in iscsi://HOST:3260/IQN/LUN")]
    Scheme,
    /// No host.
    #[error("no host: write iscsi://HOST:3260/IQN/LUN (an IPv6 address in brackets)")]
    Host,
    /// Bad port.
    #[error("`{0}` is no port: write 1 to 65535")]
    Port(String),
    /// Bad name.
    #[error("`{0}` is no iSCSI name: {1}")]
    Target(String, String),
    /// Bad number.
    #[error("`{0}` is no logical unit number: write 0 to 16383")]
    Lun(String),
}

impl Url {
    /// `HOST:PORT` as it goes into messages and name resolution.
    pub fn portal(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (user, secret) = match login.map(|login| login.split_once('%').ok_or(login)) {
            None => (None, None),
            Some(Ok((user, secret))) => (Some(user.to_owned()), Some(secret.to_owned())),
            Some(Err(user)) => (Some(user.to_owned()), None),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed.split_once(']').ok_or(UrlError::Host)?;
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(UrlError::Host),
                }
            }
            None => match place.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(UrlError::Host),
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        let port = match port {
            None => crate::config::ISCSI_PORT,
            Some(port) => match port.parse() {
                Ok(number) if number > 0 => number,
                _ => return Err(UrlError::Port(port.to_owned())),
            },
        };
        let (target, lun) = path.split_once('/').unwrap_or((path, ""));
        let target = match target {
            "" => None,
            name => {
                iscsi::name::check_received(name)
                    .map_err(|e| UrlError::Target(name.to_owned(), e.to_string()))?;
                Some(name.to_owned())
            }
        };
        let lun = match lun.trim_end_matches('/') {
            "" => None,
            number => {
                let parsed = number.parse().ok().filter(|lun| *lun < 16384);
                Some(parsed.ok_or_else(|| UrlError::Lun(number.to_owned()))?)
            }
        };
        Ok(Self { user, secret, host: host.to_owned(), port, target, lun })
    }
}

impl fmt::Display for Url {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi://{}", self.portal())?;
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        if let Some(lun) = self.lun {
            write!(f, "/{lun}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The URL of a unit: one with a target and a number.
pub fn unit(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error: UrlError| error.to_string())?;
    if url.target.is_none() || url.lun.is_none() {
        return Err("the target's name and the unit's number are missing: iscsi://HOST:3260/IQN/LUN".into());
    }
    Ok(url)
}

/// The URL of a portal or a target; HOST[:PORT] alone will do.
pub fn portal(text: &str) -> Result<Url, String> {
    let full = if text.contains("://") { text.to_owned() } else { format!("iscsi://{text}") };
    full.parse().map_err(|error: UrlError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_and_shown_without_its_secret() {
        let url: Url = "iscsi://alice%s3cret@[::1]:99/iqn.2026-01.x:y/7".parse().unwrap();
        assert_eq!((url.user.as_deref(), url.secret.as_deref()), (Some("alice"), Some("s3cret")));
        assert_eq!((url.host.as_str(), url.port, url.lun), ("::1", 99, Some(7)));
        assert_eq!(url.to_string(), "iscsi://[::1]:99/iqn.2026-01.x:y/7");
        assert!(!format!("{url:?}").contains("s3cret"));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let url: Url = "iscsi://host/iqn.2026-01.x:y".parse().unwrap();
        assert_eq!((url.port, url.lun), (3260, None));
        assert_eq!(portal("host:1").unwrap().port, 1);
        assert!(unit("iscsi://host/iqn.2026-01.x:y").is_err());
        assert_eq!(unit("iscsi://host/iqn.2026-01.x:y/0/").unwrap().lun, Some(0));
    }

    #[test]
    fn what_is_no_url_is_refused_for_its_reason() {
        let why = |text: &str| text.parse::<Url>().unwrap_err();
        assert_eq!(why("http://h/"), UrlError::Scheme);
        for bad in
            ["iscsi://", "iscsi:///iqn.2026-01.x:y/0", "iscsi://::1/x", "iscsi://[::1/x", "iscsi://[::1]x/"]
        {
            assert_eq!(why(bad), UrlError::Host, "{bad}");
        }
        assert_eq!(why("iscsi://h:0/"), UrlError::Port("0".into()));
        assert_eq!(why("iscsi://h:66000/"), UrlError::Port("66000".into()));
        assert!(matches!(why("iscsi://h/disk/0"), UrlError::Target(..)));
        assert_eq!(why("iscsi://h/iqn.2026-01.x:y/16384"), UrlError::Lun("16384".into()));
    }
}
