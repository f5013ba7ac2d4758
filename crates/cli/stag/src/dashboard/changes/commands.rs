//! What a client's administrator types: commands of Linux, Windows and ESXi with the names, the
//! addresses and, once, the secret of a disk or an export.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::super::Look;
use super::super::html::Html;
use crate::control::status::Status;

/// Commands that attach LUN `lun` of `iqn`, with a CHAP user and its secret.
pub fn disk(look: &Look<'_>, status: &Status, iqn: &str, lun: u16, user: Option<(&str, &str)>, h: &mut Html) {
    let iscsi = |portal: &&crate::control::status::PortalStatus| portal.transports.contains("iSCSI");
    let listen = status.portals.iter().find(iscsi).map(|portal| portal.listen.as_str());
    let Some((host, port)) = address(listen, look.host, h) else { return };
    if let Some((user, secret)) = user {
        h.details(&[("CHAP user", user.to_owned()), ("CHAP secret", secret.to_owned())]);
        h.leaf(
            "p",
            &[("class", "note")],
            "The secret is shown this once. Keep it where the client's administrator finds it.",
        );
    }
    let unit = status.targets.iter().find(|target| target.iqn.eq_ignore_ascii_case(iqn));
    let unit = unit.and_then(|target| target.units.iter().find(|unit| unit.lun == lun));
    let naa = unit.map_or("", |unit| unit.naa.as_str());
    section(h, "Linux (open-iscsi)", false, &linux(iqn, &host, port, user, naa));
    section(h, "Windows (PowerShell, as administrator)", true, &windows(iqn, &host, port, user));
    section(h, "VMware ESXi (vmhba64 stands for its iSCSI adapter)", true, &esxi(iqn, &host, port, user));
}

/// Commands that mount the export `name`.
pub fn export(look: &Look<'_>, name: &str, h: &mut Html) {
    let listen = look.status.nfs.listen.first().map(String::as_str);
    let Some((host, port)) = address(listen, look.host, h) else { return };
    let place = shell(&format!("{}:{name}", bracketed(&host)));
    let linux = format!(
        "sudo mkdir -p /mnt/stag\nsudo mount -t nfs -o vers=4.2,port={port} {place} /mnt/stag\n\
         # in /etc/fstab:\n# {}:{} /mnt/stag nfs vers=4.2,port={port},_netdev 0 0\n",
        bracketed(&host),
        fstab(name),
    );
    section(h, "Linux", false, &linux);
    let esxi = format!(
        "esxcli storage nfs add --host={} --share={} --volume-name=stag\n",
        shell(&host),
        shell(name)
    );
    section(h, "VMware ESXi (NFS 3, port 2049)", true, &esxi);
}

/// A block of commands under a title.
pub fn section(h: &mut Html, title: &str, is_untried: bool, text: &str) {
    h.leaf("h3", &[], title);
    if is_untried {
        h.leaf("p", &[("class", "quiet")], "These commands have not been tried with Stag.");
    }
    h.tag("pre", &[("tabindex", "0"), ("role", "region"), ("aria-label", title)], |h| {
        h.leaf("code", &[], text)
    });
}

/// Host and port that a client of a portal uses. A portal of all addresses has the name by which
/// the browser came; where that is the server's alone, as behind a tunnel of ssh, the address that
/// the server has in its network.
fn address(listen: Option<&str>, browser: &str, h: &mut Html) -> Option<(String, u16)> {
    let Some(listen) = listen.and_then(|listen| listen.parse::<SocketAddr>().ok()) else {
        h.leaf(
            "p",
            &[("class", "note mistake")],
            "No portal listens for it: see portals of the configuration.",
        );
        return None;
    };
    let mut host = match listen.ip().is_unspecified() {
        true => browser
            .rsplit_once(':')
            .map_or(browser, |(name, port)| if port.parse::<u16>().is_ok() { name } else { browser })
            .trim_matches(['[', ']'])
            .to_owned(),
        false => listen.ip().to_string(),
    };
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match own_address(listen.ip()).filter(|_| is_local) {
        Some(own) => {
            let what =
                format!("{own} is the server's address in its network; clients may know it by another.");
            h.leaf("p", &[("class", "note")], &what);
            host = own.to_string();
        }
        None if is_local => {
            let what =
                "This is an address of the server alone: other machines need a portal that they reach.";
            h.leaf("p", &[("class", "note")], what);
        }
        None => {}
    }
    Some((host, listen.port()))
}

/// The address from which this machine sends to the Internet, where a portal listens on `all` of
/// that family. Nothing is sent for it.
fn own_address(all: IpAddr) -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849): the default route leads to them.
    let far = if all.is_ipv4() { "192.0.2.1:9" } else { "[2001:db8::1]:9" };
    if !all.is_unspecified() {
        return None;
    }
    let socket = UdpSocket::bind((all, 0)).ok()?;
    socket.connect(far).ok()?;
    socket.local_addr().ok().map(|own| own.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// An address as it stands before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// One word of a POSIX shell.
fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,[]".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// One field of /etc/fstab. No line ends in it: it stands in a comment.
fn fstab(text: &str) -> String {
    let octal = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
    let byte = |byte: u8| format!("\\{byte:03o}");
    text.chars()
        .map(|c| if octal(c) { c.to_string().bytes().map(byte).collect() } else { c.to_string() })
        .collect()
}

/// One word of PowerShell.
fn powershell(text: &str) -> String {
    // It ends a text at typographic quotation marks, too.
    let quotes = ['\'', '\u{2018}', '\u{2019}', '\u{201a}', '\u{201b}'];
    let doubled = |c: char| if quotes.contains(&c) { format!("{c}{c}") } else { c.to_string() };
    format!("'{}'", text.chars().map(doubled).collect::<String>())
}

fn linux(iqn: &str, host: &str, port: u16, user: Option<(&str, &str)>, naa: &str) -> String {
    let node = format!("sudo iscsiadm -m node -T {} -p {}:{port}", shell(iqn), shell(&bracketed(host)));
    let mut text = format!("{node} -o new\n");
    if let Some((user, secret)) = user {
        for (key, value) in [("authmethod", "CHAP"), ("username", user), ("password", secret)] {
            text += &format!("{node} -o update -n node.session.auth.{key} -v {}\n", shell(value));
        }
    }
    text += &format!("{node} -o update -n node.startup -v automatic\n{node} --login\n");
    if !naa.is_empty() {
        let device = format!("/dev/disk/by-id/wwn-0x{naa}");
        text += &format!(
            "# a new disk only: this destroys what is on it\nsudo mkfs.ext4 {device}\nsudo mkdir -p /mnt/stag\nsudo mount {device} /mnt/stag\n\
             # in /etc/fstab:\n# {device} /mnt/stag ext4 _netdev 0 2\n"
        );
    }
    text
}

fn windows(iqn: &str, host: &str, port: u16, user: Option<(&str, &str)>) -> String {
    let (iqn, host) = (powershell(iqn), powershell(host));
    let chap = user.map_or_else(String::new, |(user, secret)| {
        format!(
            " -AuthenticationType ONEWAYCHAP -ChapUsername {} -ChapSecret {}",
            powershell(user),
            powershell(secret)
        )
    });
    format!(
        "New-IscsiTargetPortal -TargetPortalAddress {host} -TargetPortalPortNumber {port}\n\
         Connect-IscsiTarget -NodeAddress {iqn} -TargetPortalAddress {host} -TargetPortalPortNumber {port} -IsPersistent $true{chap}\n\
         Get-IscsiSession | Get-Disk\n"
    )
}

fn esxi(iqn: &str, host: &str, port: u16, user: Option<(&str, &str)>) -> String {
    let place =
        format!("--adapter=vmhba64 --address={}:{port} --name={}", shell(&bracketed(host)), shell(iqn));
    let mut text = format!(
        "esxcli iscsi software set --enabled=true\nesxcli iscsi adapter discovery statictarget add {place}\n"
    );
    if let Some((user, secret)) = user {
        text += &format!(
            "esxcli iscsi adapter target portal auth chap set {place} --direction=uni --level=required --authname={} --secret={}\n",
            shell(user),
            shell(secret)
        );
    }
    text + "esxcli storage core adapter rescan --adapter=vmhba64\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_of_the_shell_that_they_are_typed_in() {
        assert_eq!(shell("iqn.2026-01.org.example:a"), "iqn.2026-01.org.example:a");
        assert_eq!(shell("a'; rm -rf / #"), "'a'\\''; rm -rf / #'");
        assert_eq!(fstab("/a b\n\\\u{2028}"), "/a\\040b\\012\\134\\342\\200\\250");
        assert_eq!(
            (shell(""), powershell("a'b\u{2019}")),
            ("''".to_owned(), "'a''b\u{2019}\u{2019}'".to_owned())
        );
        let text = linux("iqn.x:y", "2001:db8::1", 3260, Some(("a b", "s$ecret")), "6f");
        assert!(
            text.contains("-p [2001:db8::1]:3260")
                && text.contains("-v 'a b'")
                && text.contains("-v 's$ecret'"),
            "{text}"
        );
        assert!(text.contains("wwn-0x6f") && text.ends_with("_netdev 0 2\n"), "{text}");
    }

    #[test]
    fn a_portal_of_all_addresses_has_the_name_by_which_the_browser_came() {
        let of = |listen: Option<&str>, browser: &str| address(listen, browser, &mut Html::default());
        assert_eq!(of(Some("0.0.0.0:3260"), "stag.example:3261"), Some(("stag.example".into(), 3260)));
        assert_eq!(of(Some("[::]:3260"), "[2001:db8::1]:3261"), Some(("2001:db8::1".into(), 3260)));
        assert_eq!(of(Some("0.0.0.0:3260"), "stag.example"), Some(("stag.example".into(), 3260)));
        assert_eq!(of(Some("192.0.2.1:860"), "stag.example:3261"), Some(("192.0.2.1".into(), 860)));
        assert_eq!(of(None, "stag.example"), None);
    }
}
