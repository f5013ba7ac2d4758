//! Commands that manage a running daemon.

use std::path::PathBuf;

use clap::Args;

use crate::health::Served;

/// Which daemon.
#[derive(Clone, Debug, Default, Args)]
pub struct At {
    /// The daemon's control socket [default: /run/stag/control.sock, or stag/control.sock in
    /// $XDG_RUNTIME_DIR if not root]
    #[arg(long, value_name = "PATH", env = "STAG_CONTROL", hide_env_values = true, global = true)]
    pub control: Option<PathBuf>,
}

/// Show what a running daemon serves, and its clients
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show what a running daemon serves, and its clients.\n\n\
    Portals, targets and their units, their health and the room on their file systems, sessions and their connections, and how the \
    cores' buffers are used.")]
#[command(
    after_long_help = "Exit status with --check, as monitoring plugins end:\n  0  no problems\n  1  warning: a unit is degraded, or a file system nearly full\n  2  critical: a unit has failed, or a file system is full\n  3  unknown: no daemon answers\n\nExamples:\n  stag status\n  stag status --check\n  stag status --json | jq '.sessions[].initiator'\n  stag status --control /run/stag/second.sock"
)]
pub struct Status {
    #[command(flatten)]
    pub at: At,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// For monitoring: print one line per problem, and use the exit statuses below
    #[arg(long, conflicts_with = "json")]
    pub check: bool,
}

/// Acknowledge the problems of a unit or an export, so that a unit's flushes can succeed again
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Acknowledge the problems of a unit or an export, so that a unit's flushes can succeed again.\n\n\
    After a flush (fsync) has failed, Linux drops the data that it could not write and calls the next flush a success. Stag therefore \
    refuses every later SYNCHRONIZE CACHE of the unit, after a restart too, until an operator acknowledges two things: the medium is \
    repaired, and writes that completed before the failure may be lost. Check the data from the initiators (fsck, a database's \
    own check) before or after. Failures of reads and writes are cleared as well. A unit or an export that is still unusable stays so."
)]
#[command(
    after_long_help = "Examples:\n  stag acknowledge iqn.2026-01.org.example:disks/0\n  stag acknowledge --json iqn.2026-01.org.example:disks/0\n  stag acknowledge /data"
)]
pub struct Acknowledge {
    #[command(flatten)]
    pub at: At,
    /// The unit, by target name and LUN, or the export, by its name
    #[arg(value_name = "TARGET/LUN|EXPORT", value_parser = served)]
    pub served: Served,
    /// Only print what it would clear
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn served(text: &str) -> Result<Served, String> {
    let unit = |(target, lun): (&str, &str)| {
        Some(Served::Unit { target: target.to_owned(), lun: lun.parse().ok()? })
    };
    match text.starts_with('/') {
        true => Some(Served::Export { export: text.to_owned() }),
        false => text.rsplit_once('/').and_then(unit),
    }
    .ok_or_else(|| "write the name that stag status shows: iqn.2026-01.org.example:disks/0, or /data".into())
}

/// Watch the load of a running daemon
#[cfg(feature = "top")]
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Watch the load of a running daemon: commands, bytes and times of its units and sessions, and how busy its cores are.\n\n\
    On a terminal of 80 columns and 24 lines or more: views of units, sessions, cores, exports and NFS clients, the busiest first, with keys at the foot. \
    They sort by any number, filter (/), and open the details of a row (Enter): its numbers, the stages of its target's commands, initiators, and its slow commands or calls \
    (stag slow --help). The lines above the foot show the chosen row over time. If the daemon goes away, the view waits for it. q ends it. NO_COLOR turns colours off.\n\n\
    Where stdout is no terminal, and with --once: a report every --interval seconds, the busiest first, and the mean times of the stages of each target's \
    reads, writes and other commands. A time is that of a command inside the daemon; one command in eight is timed."
)]
#[command(
    after_long_help = "Examples:\n  stag top\n  stag top --interval 5\n  stag top --once --json | jq '.units[0]'"
)]
pub struct Top {
    #[command(flatten)]
    pub at: At,
    /// Seconds between two reports
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Report once, after one interval, and exit
    #[arg(long)]
    pub once: bool,
    /// Print one line of JSON per report
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "top")]
fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write a number of seconds from 0.05 to 3600".into())
}

/// Show a daemon's slowest commands and NFS calls, and where their time went
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show a daemon's slowest commands and NFS calls, and where their time went.\n\n\
    Lists commands of the last 15 minutes that took 10 ms or more, the slowest first, and commands that have been at work for a second. \
    Each core keeps 64, and 64 calls of NFS. The time of a command has four parts: order, it waited for its turn (older commands, a limit of service, data that the \
    initiator had to take first); data, its unit waited for the initiator's data, or until the initiator took some; medium, the rest until its status \
    was ready; send, from then until the initiator acknowledged the status. A dash: not known.\n\n\
    Of a call: order, it waited for a limit of service or for its user's groups; medium, the rest until its reply was ready; send, from then until the kernel \
    had taken the reply. The line has the procedure of version 3, or the operations of a COMPOUND.")]
#[command(
    after_long_help = "Examples:\n  stag slow\n  stag slow --most 5\n  stag slow --json | jq '.[] | select(.medium_s > 0.1)'"
)]
pub struct Slow {
    #[command(flatten)]
    pub at: At,
    /// Commands to show at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub most: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the target port groups of a running daemon, or change one's access state
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the target port groups of a running daemon, or change one's access state (ALUA).\n\n\
    The daemon notifies every initiator of a change; the command returns once it is complete. Multipath initiators then leave \
    paths of groups that are no longer active, and prefer active/optimized ones."
)]
#[command(
    after_long_help = "Examples:\n  stag alua\n  stag alua iqn.2026-01.org.example:disks 1 standby\n  stag alua --json | jq '.[].groups[].state'"
)]
pub struct Alua {
    #[command(flatten)]
    pub at: At,
    /// The group's target
    #[arg(value_name = "IQN", requires_all = ["group", "state"])]
    pub target: Option<String>,
    /// The group's id
    #[arg(value_name = "GROUP", value_parser = clap::value_parser!(u16).range(1..))]
    pub group: Option<u16>,
    /// The new state: active/optimized, active/non-optimized, standby, unavailable or offline
    #[arg(value_name = "STATE", value_parser = access_state)]
    pub state: Option<String>,
    /// Only print what it would change
    #[arg(short = 'n', long, requires = "target")]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Take initiators off a target, a portal or the whole daemon
#[derive(Clone, Debug, Args)]
#[command(long_about = "Take initiators off a target, a portal or the whole daemon, before maintenance.\n\n\
    The daemon refuses new logins, or redirects them with --redirect. It asks every session to log out (RFC 7143 §11.9, event 1), and \
    drops the rest after --timeout with notice (events 2 and 3). Shows progress and ends when no session is left; the daemon refuses \
    logins until --undo. Without TARGET, --portal and --all, shows the drains in progress.")]
#[command(
    after_long_help = "Examples:\n  stag drain iqn.2026-01.org.example:disks\n  stag drain --portal 192.0.2.10:3260 --timeout 60\n  stag drain --all --redirect 192.0.2.20:3260\n  stag drain --all --undo\n  stag drain"
)]
pub struct Drain {
    #[command(flatten)]
    pub at: At,
    /// The target's name
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    /// Sessions of this portal, as `stag status` shows it
    #[arg(long, value_name = "ADDR:PORT", value_parser = super::serve::address, conflicts_with = "target")]
    pub portal: Option<std::net::SocketAddr>,
    /// The whole daemon
    #[arg(long, conflicts_with_all = ["target", "portal"])]
    pub all: bool,
    /// Seconds that initiators get to log out
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=3600))]
    pub timeout: u16,
    /// Redirect new logins to this portal [default: refuse them]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = redirect)]
    pub redirect: Option<String>,
    /// Accept new logins again
    #[arg(long, conflicts_with_all = ["redirect", "no_wait"])]
    pub undo: bool,
    /// Do not wait for sessions to end
    #[arg(long)]
    pub no_wait: bool,
    /// Only print whom it would disturb
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Throw one iSCSI session or NFS client out
#[derive(Clone, Debug, Args)]
#[command(long_about = "Throw one iSCSI session or NFS client out.\n\n\
    Names the session by its number, or the NFS client by its address, as stag status shows them; an address without a port means all connections of \
    that host. A session's initiator gets notice (RFC 7143 §11.9, event 3) and its outstanding commands end. For --refuse seconds the initiator's logins to that target, \
    or new connections of the host, are refused; after that they may come back, and most do by themselves. What an NFS client has open stays open until its lease \
    is over. To keep somebody out for good, change the configuration.")]
#[command(
    after_long_help = "Examples:\n  stag disconnect 4711\n  stag disconnect 192.0.2.7:901 --refuse 60\n  stag disconnect 192.0.2.7"
)]
pub struct Disconnect {
    #[command(flatten)]
    pub at: At,
    /// The number of a session, or the address of an NFS client
    #[arg(value_name = "SESSION|ADDR[:PORT]", value_parser = a_client)]
    pub client: String,
    /// Seconds for which it is refused
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=3600))]
    pub refuse: u16,
    /// Only print whom it would disturb
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn a_client(text: &str) -> Result<String, String> {
    let known = text.parse::<u16>().is_ok() || crate::control::disconnect::place(text).is_some();
    match known {
        true => Ok(text.to_owned()),
        false => Err("write what stag status shows: the number of a session, or 192.0.2.7:901".into()),
    }
}

/// Replace a running daemon with this program, without refusing a client
#[derive(Clone, Debug, Args)]
#[command(long_about = "Replace a running daemon with this program, without refusing a client.\n\n\
    Starts this program with the running daemon's arguments and --takeover, and waits until it serves. The new daemon inherits sockets, \
    reservations and access states; initiators reconnect by themselves. If it cannot serve, the old one continues. A service \
    is only upgraded from within: under systemd run `systemctl reload`, which runs this.")]
#[command(after_long_help = "Examples:\n  stag upgrade\n  stag upgrade --if-replaced")]
pub struct Upgrade {
    #[command(flatten)]
    pub at: At,
    /// Only if the program file of the running daemon was replaced
    #[arg(long)]
    pub if_replaced: bool,
    /// Upgrade even though units in memory lose their data
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
        _ => Err("write the portal that gets them: 192.0.2.20:3260".into()),
    }
}

/// Show the managed document of a running daemon
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the managed document of a running daemon: the targets and exports that it keeps itself.\n\n\
    Prints TOML without secrets. A daemon with managed = true keeps it as managed.toml in its state directory, and serves it together with the configuration. \
    A secret that is left out when the document is replaced stays as it is. The daemon keeps the last 32 documents that were replaced: --history lists them, \
    and --undo serves one of them again."
)]
#[command(
    after_long_help = "Examples:\n  stag managed\n  stag managed --json | jq .generation\n  stag managed --history\n  stag managed --undo --dry-run\n  stag managed --undo --to 1795712345678"
)]
pub struct Managed {
    #[command(flatten)]
    pub at: At,
    /// List documents that were replaced, the latest first, each by the last generation in which it
    /// was in force
    #[arg(long, conflicts_with = "undo")]
    pub history: bool,
    /// Serve the document from before the last change again. What it is undone with can be undone,
    /// too
    #[arg(long)]
    pub undo: bool,
    /// Go back to the document of generation N, instead of that before the last change
    #[arg(long, value_name = "N", requires = "undo")]
    pub to: Option<u64>,
    /// Only print what the undo would change
    #[arg(short = 'n', long, requires = "undo")]
    pub dry_run: bool,
    /// Refuse if another change came since this generation
    #[arg(long, value_name = "N", requires = "undo")]
    pub generation: Option<u64>,
    /// Print JSON, with the generation
    #[arg(long)]
    pub json: bool,
}

/// Apply a configuration file to a running daemon
#[derive(Clone, Debug, Args)]
#[command(long_about = "Apply a configuration file to a running daemon.\n\n\
    The file is complete: the daemon stops serving whatever it does not name. The daemon prints the difference and applies all of \
    it or nothing. Sessions whose target, access and units stay the same notice nothing; others get unit \
    attentions; sessions that lose access are asked to log out and disconnected two seconds later. Portals of the command line stay \
    if the file has none. Changes that need a restart are listed and wait for the next start. A daemon with managed = true keeps a second part, the managed \
    document: targets and exports that it stores itself. --managed replaces that part; without it the managed part stays.")]
#[command(
    after_long_help = "Examples:\n  stag apply --dry-run /etc/stag.toml\n  stag apply /etc/stag.toml\n  stag apply --wait --timeout 30 /etc/stag.toml\n  stag apply --managed volumes.toml"
)]
pub struct Apply {
    #[command(flatten)]
    pub at: At,
    /// The configuration
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only print the changes and the sessions they would disturb
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// FILE is the managed document: replace what the daemon keeps itself, and leave the
    /// configuration as it is
    #[arg(long)]
    pub managed: bool,
    /// Refuse if another change came since this generation, as --dry-run --json and stag status
    /// --json show it
    #[arg(long, value_name = "N")]
    pub generation: Option<u64>,
    /// Also shrink units, losing the data beyond the new end
    #[arg(long)]
    pub force: bool,
    /// Wait until all sessions that must leave have left
    #[arg(long)]
    pub wait: bool,
    /// Longest time to wait, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, requires = "wait")]
    pub timeout: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
