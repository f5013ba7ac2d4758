//! The man page stag(7): how units, targets, portals, exports, files and directories belong
//! together. Owns its text, which names no setting's value: stag.toml(5) does that.

use roff::{Roff, bold, roman};

use crate::config::reference::inline;

/// Sections of paragraphs. A paragraph with a name is an item of a list. Code stands in backquotes.
const SECTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "DESCRIPTION",
        &[
            (
                "",
                "Stag is a storage server. One daemon, `stag serve`, serves disks over iSCSI and iSER, and trees of files over NFS. \
                 The other commands manage a running daemon, or are clients of any such server. This page explains the parts and \
                 their names.",
            ),
            (
                "",
                "    initiator --- portal --- target --- unit --- file, device, memory\n    \
                 NFS client -- address ------------- export - directory, memory",
            ),
        ],
    ),
    (
        "DISKS",
        &[
            (
                "Unit",
                "A disk that is served: a file, a block device, memory, an image of a Ceph cluster, an export of an NBD server, or a store of objects. It has a \
                 number in its target, the LUN, and an identity (serial number and worldwide name) that stays when its file is moved.",
            ),
            (
                "Target",
                "A named group of units. Its name is an IQN, as `iqn.2026-01.org.example:disks`. Initiators log in to a target and \
                 then see its units. A target says who may log in, by CHAP and by access lists, and which units each initiator sees.",
            ),
            (
                "Portal",
                "An IP address and a port that the daemon listens on for initiators, 3260 unless given. All portals serve all targets, unless a \
                 target names some. Portals form groups: connections of one session may spread over the portals of one group. A \
                 portal takes iSCSI over TCP and iSER over RDMA; RDMA needs no special hardware.",
            ),
            (
                "Session",
                "What one initiator has with one target, of one or more connections. `stag status` lists sessions, `stag disconnect` \
                 ends one, and `stag drain` asks all initiators of a target to leave.",
            ),
        ],
    ),
    (
        "FILES OVER NFS",
        &[(
            "Export",
            "A directory, or memory, that NFS clients mount by the export's name. It says which networks may mount it, and whose \
                 identity is replaced. NFS has addresses of its own, port 2049 unless given, which also serve MOUNT and a portmapper.",
        )],
    ),
    (
        "CONFIGURATION AND CHANGES",
        &[(
            "",
            "What is served stands on the command line of `stag serve`, or in a file that stag.toml(5) describes. \
                 `stag check-config FILE` finds mistakes and says what the file means. `stag apply FILE` changes the running daemon to \
                 what the file says, whole or not at all, and `--dry-run` tells first whom that disturbs. `stag upgrade` has a new \
                 program take the place of the running one; clients reconnect by themselves. As a service, both are \
                 `systemctl reload stag`.",
        )],
    ),
    (
        "URLS",
        &[
            (
                "iscsi://HOST[:PORT]/IQN/LUN",
                "A unit, over TCP. Without LUN or IQN it is a target, or all that a host serves.",
            ),
            ("iser://HOST[:PORT]/IQN/LUN", "The same over RDMA."),
            ("nfs://HOST[:PORT]/EXPORT/PATH", "A file or directory of an NFS server."),
            ("nfs+rdma://HOST[:PORT]/EXPORT/PATH", "The same over RDMA."),
        ],
    ),
    (
        "FILES",
        &[
            (
                "/etc/stag/stag.toml",
                "What the service serves. It may hold secrets: only root and the group `stag` read it.",
            ),
            (
                "/var/lib/stag",
                "The state directory, `$STATE_DIRECTORY` for others than the service. It has what must outlive the daemon and has no \
                 place beside a medium: identities, reservations of devices and memory, the key of NFS file handles, and the \
                 records of NFS clients. Back it up with the media.",
            ),
            (
                "/run/stag/control.sock",
                "The control socket, by which commands reach the daemon; it lies in `$RUNTIME_DIRECTORY`. Members of the group \
                 `stag` may look and drain; root and the daemon's user may do everything.",
            ),
            (
                "FILE.reservations, FILE.sanitize, FILE.identity",
                "Persistent reservations, the record of a SANITIZE, and, where the file system has no extended attributes, the \
                 identity of the unit FILE, beside it.",
            ),
        ],
    ),
];

/// The pages to go on with, in the order of what a newcomer does.
const SEE_ALSO: &[(&str, &str)] = &[
    ("stag", "1"),
    ("stag-serve", "1"),
    ("stag-check-config", "1"),
    ("stag-apply", "1"),
    ("stag-status", "1"),
    ("stag-drain", "1"),
    ("stag-upgrade", "1"),
    ("stag-doctor", "1"),
    ("stag-ls", "1"),
    ("stag-cp", "1"),
    ("stag.toml", "5"),
    ("iscsiadm", "8"),
    ("nfs", "5"),
];

/// The page, as roff.
pub fn manual() -> String {
    let mut page = Roff::new();
    page.control("TH", ["STAG", "7", "", concat!("stag ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("stag - how disks, exports and the daemon that serves them belong together")]);
    for (title, paragraphs) in SECTIONS {
        page.control("SH", [*title]);
        for (name, text) in *paragraphs {
            if text.starts_with(' ') {
                page.control("PP", []);
                page.control("nf", []);
                for line in text.lines() {
                    page.text([roman(line)]);
                }
                page.control("fi", []);
            } else if name.is_empty() {
                page.control("PP", []);
                page.text(inline(text));
            } else {
                page.control("TP", []);
                page.text([bold(*name)]);
                page.text(inline(text));
            }
        }
    }
    page.control("SH", ["SEE ALSO"]);
    for (at, (name, section)) in SEE_ALSO.iter().enumerate() {
        let end = if at + 1 == SEE_ALSO.len() { "" } else { "," };
        page.text([bold(*name), roman(format!("({section}){end}"))]);
    }
    page.to_roff()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_that_the_page_names_is_there() {
        let cli = Cli::command();
        let commands: BTreeSet<_> = cli.get_subcommands().map(|command| command.get_name()).collect();
        let text =
            SECTIONS.iter().flat_map(|(_, paragraphs)| *paragraphs).flat_map(|(_, text)| text.split('`'));
        let named = text.filter_map(|code| code.strip_prefix("stag ")?.split(' ').next());
        let seen = SEE_ALSO.iter().filter_map(|(name, _)| name.strip_prefix("stag-"));
        let named: BTreeSet<_> = named.chain(seen).collect();
        assert!(named.len() > 8 && named.is_subset(&commands), "{named:?}");
    }
}
