//! The command line as clap sees it. Man pages and completions are generated from it.

mod bench;
mod client;
mod conform;
mod control;
mod doctor;
mod gateways;
mod identity;
mod import;
#[cfg(feature = "lab")]
pub mod lab;
#[cfg(feature = "lab")]
mod lab_link;
mod lock;
pub mod osd;
pub mod osd_bench;
pub mod place;
pub mod rdma_bench;
mod serve;
mod token;
mod tune;
pub mod url;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub use bench::{Bench, Pattern, Receive};
pub use client::{
    Cat, ChapHash, Connect, Cp, Digest, Info, Ls, Place, Rdma, RdmaCrc, Read, Rm, Spread, Transfer, Tuning,
    Write,
};
pub use conform::Conform;
#[cfg(feature = "top")]
pub use control::Top;
pub use control::{Acknowledge, Alua, Apply, At, Disconnect, Drain, Managed, Slow, Status, Upgrade};
pub use doctor::Doctor;
pub use gateways::{Gateways, GatewaysAction, Move};
pub use identity::Identity;
pub use import::Import;
#[cfg(feature = "lab")]
pub use lab::Lab;
pub use lock::Lock;
pub use osd::Osd;
pub use rdma_bench::RdmaBench;
pub use serve::{Demo, Serve};
pub use token::{Token, TokenWhat};
pub use tune::Tune;
pub use url::Remote;

use crate::config::Daemon;
use crate::config::reference::help;
use crate::config::settings::flag;
use crate::log::Format;

/// The version that `--version` prints, with the commit if the build was told it.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| long_version(option_env!("STAG_COMMIT")));

fn long_version(commit: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// Serves disks and objects over iSCSI, and reads and writes them
#[derive(Clone, Debug, Parser)]
#[command(name = "stag", version, long_version = LONG_VERSION.as_str(), max_term_width = 110, after_long_help = format!("{EXAMPLES}\n\n{}", crate::exit::HELP))]
#[command(long_about = "Serves disks and objects over iSCSI, and reads and writes them.\n\n\
    `stag serve` serves files, block devices and memory as disks, and directories as stores of objects. The other \
    commands work on the disks of any iSCSI target, and `stag osd` on objects. A URL names them: iscsi://HOST[:PORT]/IQN/LUN, or iser:// \
    to use RDMA (iSER). RDMA needs no special hardware: software iWARP is built in.")]
pub struct Cli {
    /// Which messages go to stderr: off, error, warn, info, debug, trace, or target=level,…
    #[arg(long, global = true, env = "STAG_LOG", value_name = "FILTER", value_parser = log_filter, hide_env_values = true)]
    pub log: Option<String>,
    #[arg(long, global = true, env = "STAG_LOG_FORMAT", value_name = "FORMAT", hide_env_values = true)]
    #[arg(help = help::<Daemon>("log-format"), value_parser = flag::<Daemon, Format>("log-format"))]
    pub log_format: Option<Format>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  stag demo
  stag serve /srv/disk.img,size=10G
  stag info iscsi://localhost/iqn.2026-01.org.example:disks/0";

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    // Each is described at its arguments.
    Serve(Serve),
    CheckConfig(CheckConfig),
    Doctor(Doctor),
    Import(Import),
    Demo(Demo),
    Status(Status),
    Acknowledge(Acknowledge),
    #[cfg(feature = "top")]
    Top(Top),
    Slow(Slow),
    Alua(Alua),
    Drain(Drain),
    Disconnect(Disconnect),
    Gateways(Gateways),
    Move(Move),
    Apply(Apply),
    Managed(Managed),
    Token(Token),
    Upgrade(Upgrade),
    Identity(Identity),
    Lock(Lock),
    Ls(Ls),
    Info(Info),
    Read(Read),
    Write(Write),
    Cp(Cp),
    Cat(Cat),
    Rm(Rm),
    Bench(Box<Bench>),
    RdmaBench(Box<RdmaBench>),
    Tune(Box<Tune>),
    Osd(Box<Osd>),
    #[cfg(feature = "lab")]
    Lab(Lab),
    Conform(Conform),
    Completions(Completions),
    Man(Man),
}

/// Check a configuration file and print its meaning
#[derive(Clone, Debug, Args)]
#[command(long_about = "Check a configuration file and print its meaning.\n\n\
    Reports every mistake with its line, the wrong text and a correct one, and exits with status 3 if there is any. \
    Opens no unit and no socket, but reads the secret files that the configuration names.")]
#[command(
    after_long_help = "Examples:\n  stag check-config /etc/stag.toml\n  stag check-config --quiet /etc/stag.toml && systemctl restart stag\n  stag check-config --schema > stag.schema.json"
)]
pub struct CheckConfig {
    /// The configuration file
    #[arg(value_name = "FILE", required_unless_present_any = ["keys", "schema"])]
    pub file: Option<PathBuf>,
    /// Print the reference page of all keys instead, as Markdown
    #[arg(long, conflicts_with_all = ["file", "schema"])]
    pub keys: bool,
    /// Print a JSON Schema of the file instead, for editors
    #[arg(long, conflicts_with = "file")]
    pub schema: bool,
    /// Print nothing if the file is correct
    #[arg(short, long)]
    pub quiet: bool,
}

/// Print completions for a shell
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag completions bash > /usr/share/bash-completion/completions/stag\n  stag completions zsh > /usr/share/zsh/site-functions/_stag"
)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Write the man pages
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  stag man /usr/local/share/man")]
pub struct Man {
    /// The directory that gets man1, man5 and man7; created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

fn log_filter(text: &str) -> Result<String, String> {
    crate::log::check(text).map(|()| text.to_owned())
}

/// A size of the command line, bytes.
fn size(text: &str) -> Result<u64, String> {
    backing::size::parse_size(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_tells_the_commit_where_the_build_was_told_it() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(long_version(Some("0123456789ab")), format!("{version} (commit 0123456789ab)"));
        assert_eq!([long_version(None), long_version(Some(""))], [version, version]);
    }

    #[test]
    fn every_subcommand_has_examples_and_the_statuses_are_told() {
        let mut cli = Cli::command();
        assert!(cli.render_long_help().to_string().contains(crate::exit::HELP));
        for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                !about.is_empty() && help.starts_with(&about),
                "stag {name} --help begins with {help:.60}"
            );
            assert!(help.contains("Examples:"), "stag {name} --help has no examples");
            assert!(
                help.contains(&format!("  stag {name}")),
                "the examples of stag {name} are of something else"
            );
        }
    }

    #[test]
    fn a_unit_that_is_not_understood_is_a_usage_error_that_says_what_to_write() {
        let error = Cli::try_parse_from(["stag", "serve", "mem:1G,blocksize=4096"]).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 2);
        assert!(text.contains("no option `blocksize`"), "{text}");
    }
}
