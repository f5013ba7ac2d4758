//! The arguments of `stag conform`.

use std::path::PathBuf;

use clap::Args;

use super::url::{self, Remote};

/// Check what a target or an NFS server does against the standards
#[derive(Clone, Debug, Args)]
#[command(long_about = "Check what a target or an NFS server does against the standards.\n\n\
    Logs in again and again, says right and wrong things to the target, and tells in sentences, with the clauses of RFC 7143, \
    RFC 7145, SPC and SAM, what it does otherwise than they ask. Any target will do; by iser:// its iSER is checked.\n\n\
    By nfs:// an NFS server is checked against RFC 5531, RFC 1813 with MOUNT and the portmapper, RFC 8881, RFC 7862 and RFC 8276: \
    each version that it has, or the one of ?vers=3, 4.1 or 4.2. The export must be writable: the run works in a directory of its \
    own, .stag-conform-NUMBER, which it makes there and removes at the end. It calls as this process's user, or as ?uid= and ?gid=; \
    some checks need a second user (54321), whom the server must not map to the first.\n\n\
    Nothing is written, reset or aborted that is not the suite's own: data that has to go out is compared by VERIFY with \
    what the medium holds. With --write, 1 MiB of the unit is written to, and what was there is written back at the end; \
    --destructive resets the unit and the target, which other initiators notice.\n\n\
    Each check has sessions of its own, and an end in time. A check passes, fails (MUST), is warned of (SHOULD), does not apply \
    (the target does not offer what it is about), or could not be tested.")]
#[command(
    after_long_help = "Examples:\n  stag conform iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0\n  stag conform --write --destructive --json URL >result.json\n  stag conform --only data-out --only keys/digest-order URL\n  stag conform --user me --secret-file secret --mutual-user storage --mutual-secret-file theirs URL\n  stag conform --junit conform.xml URL\n  stag conform 'nfs://192.0.2.1/export?uid=0&gid=0'\n  stag conform --list\n  stag conform --explain numbers/wraps-around"
)]
pub struct Conform {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA; or an export:
    /// nfs://HOST[:PORT]/EXPORT
    #[arg(value_name = "URL", value_parser = url::remote, required_unless_present_any = ["list", "explain"])]
    pub url: Option<Remote>,
    /// Write to the unit too, and put back what was there
    #[arg(long)]
    pub write: bool,
    /// First byte of the 1 MiB that is written to, or compared
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = super::size)]
    pub write_at: u64,
    /// Reset the unit and the target too, and abort what others have running
    #[arg(long)]
    pub destructive: bool,
    /// Only the checks of an area, of a name (AREA/NAME), or with a word in their name
    #[arg(long, value_name = "WORD", value_parser = word)]
    pub only: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Write JUnit's XML there too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Say nothing of checks that pass or do not apply
    #[arg(short, long)]
    pub quiet: bool,
    /// List the checks and what they require, and end
    #[arg(long, conflicts_with_all = ["explain", "url"])]
    pub list: bool,
    /// Tell what a check requires, where that stands and why it matters, and end
    #[arg(long, value_name = "NAME", value_parser = word, conflicts_with = "url")]
    pub explain: Option<String>,
    /// This initiator's name [default: that of /etc/iscsi/initiatorname.iscsi where it can be read, else one with this host's name]
    #[arg(
        long,
        value_name = "IQN",
        env = "STAG_INITIATOR",
        default_value_t = crate::iqn::default_initiator(),
        hide_default_value = true,
        help_heading = "Connection"
    )]
    pub initiator: String,
    /// CHAP name; one in the URL goes before. The secret comes from --secret-file or STAG_SECRET, or is asked for at the terminal
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    pub user: Option<String>,
    /// File that holds the CHAP secret alone
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub secret_file: Option<PathBuf>,
    /// CHAP name that the target has to prove (mutual CHAP); its secret from --mutual-secret-file or STAG_MUTUAL_SECRET, or asked for
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    pub mutual_user: Option<String>,
    /// File that holds the target's CHAP secret alone
    #[arg(long, value_name = "FILE", requires = "mutual_user", help_heading = "Connection")]
    pub mutual_secret_file: Option<PathBuf>,
    /// Seconds that an answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600), help_heading = "Connection")]
    pub timeout: u32,
}

fn word(text: &str) -> Result<String, String> {
    match ::conform::matching(text).is_empty() {
        false => Ok(text.to_owned()),
        true => Err("no check has that in its name; stag conform --list has them all".to_owned()),
    }
}
