//! The arguments of `stag conform`.

use std::path::PathBuf;

use clap::Args;

use super::url::{self, Remote};

/// Check an iSCSI target or NFS server against the standards
#[derive(Clone, Debug, Args)]
#[command(long_about = "Check an iSCSI target or NFS server against the standards.\n\n\
    Logs in repeatedly, sends valid and invalid PDUs, and reports each deviation with the clause of RFC 7143, \
    RFC 7145, SPC or SAM. Works with any target; iser:// checks iSER.\n\n\
    nfs:// checks an NFS server against RFC 5531, RFC 1813 with MOUNT and the portmapper, RFC 8881, RFC 7862 and RFC 8276: \
    each version it offers, or the one of ?vers=3, 4.1 or 4.2. The export must be writable: the run works in a directory of its \
    own, .stag-conform-NUMBER, and removes it at the end. It calls as this process's user, or as ?uid= and ?gid=. \
    Some checks need a second user (54321); the server must not map it to the first.\n\n\
    By default the suite changes nothing: checks that send data use VERIFY with the bytes on the medium. \
    --write overwrites 1 MiB of the unit and restores it at the end. \
    --destructive resets the unit and the target, which other initiators notice.\n\n\
    Each check has sessions of its own and a time limit. It passes, fails (MUST), warns (SHOULD), does not apply \
    (the target does not offer the feature), or could not be tested.")]
#[command(
    after_long_help = "Examples:\n  stag conform iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0\n  stag conform --write --destructive --json URL >result.json\n  stag conform --only data-out --only keys/digest-order URL\n  stag conform --user me --secret-file secret --mutual-user storage --mutual-secret-file theirs URL\n  stag conform --junit conform.xml URL\n  stag conform 'nfs://192.0.2.1/export?uid=0&gid=0'\n  stag conform --list\n  stag conform --explain numbers/wraps-around"
)]
pub struct Conform {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA; or an export:
    /// nfs://HOST[:PORT]/EXPORT, nfs+rdma://HOST[:PORT]/EXPORT
    #[arg(value_name = "URL", value_parser = url::remote, required_unless_present_any = ["list", "explain"])]
    pub url: Option<Remote>,
    /// Also write to the unit, and restore its data
    #[arg(long)]
    pub write: bool,
    /// First byte of the 1 MiB that is written or compared
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = super::size)]
    pub write_at: u64,
    /// Also reset the unit and the target, and abort commands of other initiators
    #[arg(long)]
    pub destructive: bool,
    /// Only checks of this area, name (AREA/NAME), or with this word in their name
    #[arg(long, value_name = "WORD", value_parser = word)]
    pub only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write JUnit XML to this file
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Hide checks that pass or do not apply
    #[arg(short, long)]
    pub quiet: bool,
    /// List the checks and their requirements, and exit
    #[arg(long, conflicts_with_all = ["explain", "url"])]
    pub list: bool,
    /// Explain a check: its requirement, the clause, and why it matters
    #[arg(long, value_name = "NAME", value_parser = word, conflicts_with = "url")]
    pub explain: Option<String>,
    /// This initiator's name [default: from /etc/iscsi/initiatorname.iscsi if readable, else made
    /// of this host's name]
    #[arg(
        long,
        value_name = "IQN",
        env = "STAG_INITIATOR",
        default_value_t = crate::iqn::default_initiator(),
        hide_default_value = true,
        help_heading = "Connection"
    )]
    pub initiator: String,
    /// CHAP name; a name in the URL has priority. The secret comes from --secret-file, STAG_SECRET
    /// or a prompt
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    pub user: Option<String>,
    /// File with the CHAP secret and nothing else
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub secret_file: Option<PathBuf>,
    /// CHAP name that the target must prove (mutual CHAP). Its secret comes from
    /// --mutual-secret-file, STAG_MUTUAL_SECRET or a prompt
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    pub mutual_user: Option<String>,
    /// File with the target's CHAP secret and nothing else
    #[arg(long, value_name = "FILE", requires = "mutual_user", help_heading = "Connection")]
    pub mutual_secret_file: Option<PathBuf>,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600), help_heading = "Connection")]
    pub timeout: u32,
}

fn word(text: &str) -> Result<String, String> {
    match ::conform::matching(text).is_empty() {
        false => Ok(text.to_owned()),
        true => Err("no check has that in its name; `stag conform --list` shows all".to_owned()),
    }
}
