//! URLs of units and portals among the arguments.

use iscsi_client::{Url, UrlError};

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
    fn a_portal_needs_a_host_only() {
        assert_eq!(portal("host:1").unwrap().port, 1);
        assert_eq!(portal("[::1]").unwrap().host, "::1");
        assert_eq!(portal("iscsi://host").unwrap().port, 3260);
        assert_eq!(portal("iser://host").unwrap().transport, iscsi_client::Transport::Iser);
        assert_eq!(portal("host").unwrap().transport, iscsi_client::Transport::Tcp);
        assert!(portal("").is_err());
    }
}
