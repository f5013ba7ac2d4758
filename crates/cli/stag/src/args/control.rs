//! Commands that manage a running daemon.

use std::path::PathBuf;

use clap::Args;

/// Which daemon.
#[derive(Clone, Debug, Default, Args)]
pub struct At {
    /// The daemon's control socket [default: /run/stag/control.sock, or stag/control.sock in $XDG_RUNTIME_DIR if not root]
    #[arg(long, value_name = "PATH", env = "STAG_CONTROL", hide_env_values = true)]
    pub control: Option<PathBuf>,
}

/// Show what a running daemon serves, and to whom
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show what a running daemon serves, and to whom.\n\n\
    Portals, targets and their units, their health and the room on their file systems, sessions and their connections, and how the \
    cores' buffers are used.")]
#[command(
    after_long_help = "Exit status with --check, as monitoring plugins end:\n  0  no problems\n  1  warning: a unit is degraded, or a file system nearly full\n  2  critical: a unit has failed, or a file system is full\n  3  unknown: no daemon answers\n\nExamples:\n  stag status\n  stag status --check\n  stag status --json | jq '.sessions[].initiator'\n  stag status --control /run/stag/second.sock"
)]
pub struct Status {
    #[command(flatten)]
    pub at: At,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// For monitoring: print one line a problem, and end with a status of its own (see below)
    #[arg(long, conflicts_with = "json")]
    pub check: bool,
}

/// Acknowledge the problems of a unit, so that its flushes may succeed again
#[derive(Clone, Debug, Args)]
#[command(long_about = "Acknowledge the problems of a unit, so that its flushes may succeed again.\n\n\
    After a flush (fsync) has failed, Linux drops the data that it could not write and calls the next flush a success. Stag therefore \
    refuses every later SYNCHRONIZE CACHE of the unit, after a restart too, until somebody acknowledges it: that the medium is \
    repaired, and that what was acknowledged before the failure may be lost. Check the data from the initiators (fsck, a database's \
    own check) before or after. Failures of reads and writes are forgotten as well. A unit that is still not usable stays so.")]
#[command(
    after_long_help = "Examples:\n  stag acknowledge iqn.2026-01.org.example:disks/0\n  stag acknowledge --json iqn.2026-01.org.example:disks/0"
)]
pub struct Acknowledge {
    #[command(flatten)]
    pub at: At,
    /// The unit: its target's name and its number there
    #[arg(value_name = "TARGET/LUN", value_parser = target_and_lun)]
    pub unit: (String, u16),
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

fn target_and_lun(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once('/').and_then(|(target, lun)| Some((target.to_owned(), lun.parse().ok()?)));
    parts
        .filter(|(target, _)| !target.is_empty())
        .ok_or_else(|| "write it as stag status names it: iqn.2026-01.org.example:disks/0".into())
}

/// Watch what a running daemon does
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Watch what a running daemon does: commands, bytes and times of its units and sessions, and how busy its cores are.\n\n\
    Shows the busiest first, anew every --interval seconds, until interrupted. Times are those that commands spend in the daemon, of \
    one command of eight."
)]
#[command(
    after_long_help = "Examples:\n  stag top\n  stag top --interval 5\n  stag top --once --json | jq '.units[0]'"
)]
pub struct Top {
    #[command(flatten)]
    pub at: At,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Look once, for one interval, and end
    #[arg(long)]
    pub once: bool,
    /// As JSON, a line each time
    #[arg(long)]
    pub json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds, 0.05 to 3600".into())
}

/// Show the target port groups of a running daemon, or change one's access state
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the target port groups of a running daemon, or change one's access state (ALUA).\n\n\
    A change is told to every initiator; the command ends when it is done. Initiators that use several paths then leave those \
    of a group that is not active any more, and prefer those that are active/optimized."
)]
#[command(
    after_long_help = "Examples:\n  stag alua\n  stag alua iqn.2026-01.org.example:disks 1 standby\n  stag alua --json | jq '.[].groups[].state'"
)]
pub struct Alua {
    #[command(flatten)]
    pub at: At,
    /// The target whose group is meant
    #[arg(value_name = "IQN", requires_all = ["group", "state"])]
    pub target: Option<String>,
    /// The group's id
    #[arg(value_name = "GROUP", value_parser = clap::value_parser!(u16).range(1..))]
    pub group: Option<u16>,
    /// What it becomes: active/optimized, active/non-optimized, standby, unavailable or offline
    #[arg(value_name = "STATE", value_parser = access_state)]
    pub state: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Take initiators off a target, a portal or the whole daemon
#[derive(Clone, Debug, Args)]
#[command(long_about = "Take initiators off a target, a portal or the whole daemon, before maintenance.\n\n\
    New logins are refused, or sent elsewhere with --redirect. Every session is asked to log out (RFC 7143 §11.9, event 1); what is \
    left after --timeout is dropped with notice (events 2 and 3). Shows how it goes, and ends when nobody is left; logins stay \
    refused until --undo. Without TARGET, --portal and --all, shows what is being drained.")]
#[command(
    after_long_help = "Examples:\n  stag drain iqn.2026-01.org.example:disks\n  stag drain --portal 192.0.2.10:3260 --timeout 60\n  stag drain --all --redirect 192.0.2.20:3260\n  stag drain --all --undo\n  stag drain"
)]
pub struct Drain {
    #[command(flatten)]
    pub at: At,
    /// The target's name
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    /// What came through this portal, as `stag status` names it
    #[arg(long, value_name = "ADDR:PORT", value_parser = super::serve::address, conflicts_with = "target")]
    pub portal: Option<std::net::SocketAddr>,
    /// Everything
    #[arg(long, conflicts_with_all = ["target", "portal"])]
    pub all: bool,
    /// Seconds that initiators have to log out
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=3600))]
    pub timeout: u16,
    /// Where new logins are sent; refused if left out
    #[arg(long, value_name = "HOST[:PORT]", value_parser = redirect)]
    pub redirect: Option<String>,
    /// Let new logins in again
    #[arg(long, conflicts_with_all = ["redirect", "no_wait"])]
    pub undo: bool,
    /// Do not wait until nobody is left
    #[arg(long)]
    pub no_wait: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Replace a running daemon by this program, without refusing a client
#[derive(Clone, Debug, Args)]
#[command(long_about = "Replace a running daemon by this program, without refusing a client.\n\n\
    Starts this program as the running daemon was started, with --takeover, and waits until it serves. Sockets, reservations and \
    access states go over; initiators reconnect by themselves. If the new daemon cannot serve, the old one goes on. Under systemd, \
    as a reload command of dist/stag.service, it upgrades the service in place after a new package was installed.")]
#[command(after_long_help = "Examples:\n  stag upgrade\n  stag upgrade --if-replaced")]
pub struct Upgrade {
    #[command(flatten)]
    pub at: At,
    /// Only if another file is where the running daemon's program was
    #[arg(long)]
    pub if_replaced: bool,
    /// Even if units in memory lose their data by it
    #[arg(long)]
    pub lose_memory_units: bool,
}

fn access_state(text: &str) -> Result<String, String> {
    let names = scsi::data::target_port_groups::AccessState::NAMES.map(|(name, _)| name);
    if names.contains(&text) { Ok(text.to_owned()) } else { Err(format!("write {}", names.join(", "))) }
}

fn redirect(text: &str) -> Result<String, String> {
    match iscsi::discovery::TargetAddress::parse(text) {
        Some(address) if address.portal_group_tag.is_none() => Ok(address.to_string()),
        _ => Err("write where they are sent: 192.0.2.20:3260".into()),
    }
}

/// Make a configuration file what a running daemon serves
#[derive(Clone, Debug, Args)]
#[command(long_about = "Make a configuration file what a running daemon serves.\n\n\
    The file is the whole of it: what it does not name is taken out. The difference to what runs is computed, printed, and put in \
    force whole or not at all. Sessions whose target, access and units stay as they are notice nothing; others are told by unit \
    attentions; those that may not stay are asked to log out and disconnected two seconds later. Portals of the command line stay \
    if the file has none. What needs a restart is named and left for the next start.")]
#[command(
    after_long_help = "Examples:\n  stag apply --dry-run /etc/stag.toml\n  stag apply /etc/stag.toml\n  stag apply --wait --timeout 30 /etc/stag.toml"
)]
pub struct Apply {
    #[command(flatten)]
    pub at: At,
    /// The configuration
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only say what would change, and whom it would disturb
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Also make units smaller, whatever is lost
    #[arg(long)]
    pub force: bool,
    /// Wait until everybody who has to leave has left
    #[arg(long)]
    pub wait: bool,
    /// How long to wait for that, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, requires = "wait")]
    pub timeout: f64,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}
