//! URLs of units and portals among the arguments.

use iscsi_client::{Url, UrlError};

/// What a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A unit, target or portal of iSCSI.
    Unit(Url),
    /// A file or directory of NFS.
    File(nfs_client::Url),
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unit(url) => url.fmt(f),
            Self::File(url) => url.fmt(f),
        }
    }
}

/// The URL of a unit, or of a file.
pub fn remote(text: &str) -> Result<Remote, String> {
    match nfs_client::Url::is_one(text) {
        true => file(text).map(Remote::File),
        false => unit(text).map(Remote::Unit),
    }
}

/// The URL of a file or directory.
pub fn file(text: &str) -> Result<nfs_client::Url, String> {
    text.parse().map_err(|error: nfs_client::UrlError| error.to_string())
}

/// The URL of a portal or a target, or of a file or directory.
pub fn listed(text: &str) -> Result<Remote, String> {
    match nfs_client::Url::is_one(text) {
        true => file(text).map(Remote::File),
        false => portal(text).map(Remote::Unit),
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
    fn a_unit_needs_a_target_and_a_number() {
        assert_eq!(unit("iscsi://host/iqn.2026-01.org.example:y/0/").unwrap().lun, Some(0));
        for text in
            ["iscsi://host", "iscsi://host/iqn.2026-01.org.example:y", "host/iqn.2026-01.org.example:y/0"]
        {
            assert!(unit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_scheme_says_what_a_url_names() {
        assert!(matches!(remote("nfs://host/export/file"), Ok(Remote::File(_))));
        assert!(matches!(remote("nfs+rdma://host/export/file"), Ok(Remote::File(_))));
        assert!(matches!(remote("iscsi://host/iqn.2026-01.org.example:y/0"), Ok(Remote::Unit(_))));
        assert!(matches!(listed("nfs://host"), Ok(Remote::File(_))));
        assert!(matches!(listed("host"), Ok(Remote::Unit(_))));
        assert!(remote("nfs://host/a?vers=2").unwrap_err().contains("vers=3"));
    }

    #[test]
    fn a_portal_needs_a_host_only() {
        assert_eq!(portal("host:1").unwrap().port, 1);
        assert_eq!(portal("[::1]").unwrap().host, "::1");
        assert_eq!(portal("iscsi://host").unwrap().port, 3260);
        assert_eq!(portal("iser://host").unwrap().transport, iscsi_client::Transport::Iser);
        assert_eq!(portal("host").unwrap().transport, iscsi_client::Transport::Tcp);
        assert!(portal("").is_err());
    }
}
