//! `stag conform`: chooses checks, runs them, shows how far they are, and prints what came of them.

use std::io::IsTerminal as _;
use std::time::Duration;

use conform::{
    Account, Area, Check, Options, Outcome, Over, Progress, Record, Report, RunError, ShareOptions, Transport,
};
use nfs_client::Version;

use crate::args::{Conform, Remote};
use crate::client::connect::{Names, credentials};
use crate::exit::Exit;
use crate::out::{self, print};

/// Time limit of a check, in multiples of the time limit of an answer.
const ANSWERS: u32 = 6;

pub fn conform(args: &Conform) -> Exit {
    if args.list {
        return print(&list(&chosen(args)));
    }
    if let Some(name) = &args.explain {
        return print(&conform::matching(name).iter().map(explain).collect::<Vec<_>>().join("\n"));
    }
    let live = std::io::stderr().is_terminal();
    let mut tell = |progress: Progress<'_>| show(live, progress);
    let outcome = match &args.url {
        Some(Remote::File(url)) => conform::run_share(share_options(args, url), &chosen(args), &mut tell),
        Some(Remote::Unit(url)) => match options(args, url) {
            Ok(options) => conform::run(options, &chosen(args), &mut tell),
            Err(why) => {
                say!("stag: {why}");
                return Exit::Failed;
            }
        },
        None => {
            say!("stag: no URL");
            return Exit::Failed;
        }
    };
    clear(live);
    let mut report = match outcome {
        Ok(report) => report,
        Err(error) => {
            say!("stag: {error}");
            return match error {
                RunError::NoRing(_) => Exit::Failed,
                RunError::Resolve { .. } | RunError::Unreachable(_) | RunError::Refused(_) => {
                    Exit::Unreachable
                }
            };
        }
    };
    if let Some(path) = &args.junit {
        if let Err(error) = std::fs::write(path, report.junit()) {
            say!("stag: {}: {error}", path.display());
            return Exit::Failed;
        }
    }
    if let Some(why) = &report.left_behind {
        say!("stag: {why}");
    }
    let failed = report.counts().failed > 0 || report.left_behind.is_some();
    let text = if args.json { report.json() } else { text(&mut report, args.quiet) };
    print(&text).or(if failed { Exit::Failed } else { Exit::Done })
}

fn text(report: &mut Report, quiet: bool) -> String {
    let summary = report.summary();
    if quiet {
        report.records.retain(|r| matches!(r.outcome, Outcome::Fail { .. } | Outcome::Warning { .. }));
        let text = report.text();
        return format!(
            "{}\n{summary}\n",
            text.trim_end().rsplit_once('\n').map_or("", |(before, _)| before)
        );
    }
    report.text()
}

fn options(args: &Conform, url: &iscsi_client::Url) -> Result<Options, String> {
    let transport = match url.transport {
        iscsi_client::Transport::Tcp => Transport::Tcp,
        iscsi_client::Transport::Iser => Transport::Iser,
    };
    let names = Names {
        user: args.user.as_deref(),
        secret_file: args.secret_file.as_deref(),
        mutual_user: args.mutual_user.as_deref(),
        mutual_secret_file: args.mutual_secret_file.as_deref(),
    };
    let account = credentials(url, names).map_err(|error| error.to_string())?;
    let target_name = url.target.clone().unwrap_or_default();
    let answer_within = Duration::from_secs(args.timeout.into());
    Ok(Options {
        initiator: args.initiator.clone(),
        account: account.map(|(initiator, target)| Account { initiator, target }),
        write: args.write,
        write_at: args.write_at,
        destructive: args.destructive,
        answer_within,
        check_within: answer_within * ANSWERS,
        ..Options::new(transport, &url.host, url.port, &target_name, url.lun.unwrap_or(0))
    })
}

/// The options of a run against an NFS server. Without a version in the URL every one is checked.
fn share_options(args: &Conform, url: &nfs_client::Url) -> ShareOptions {
    let answer_within = Duration::from_secs(args.timeout.into());
    ShareOptions {
        rdma: url.transport == nfs_client::Transport::Rdma,
        v3: matches!(url.version, None | Some(Version::V3)),
        minor: match url.version {
            None | Some(Version::V42) => Some(2),
            Some(Version::V41) => Some(1),
            Some(Version::V3) => None,
        },
        uid: url.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: url.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        answer_within,
        check_within: answer_within * ANSWERS,
        ..ShareOptions::new(&url.host, url.port, &url.path)
    }
}

/// The checks that are wanted, in their order, each once.
fn chosen(args: &Conform) -> Vec<Check> {
    let mut all = conform::checks();
    if !args.only.is_empty() {
        let wanted: Vec<String> = args
            .only
            .iter()
            .flat_map(|word| conform::matching(word))
            .map(|check| check.full_name())
            .collect();
        all.retain(|check| wanted.contains(&check.full_name()));
    }
    all
}

fn list(checks: &[Check]) -> String {
    let mut text = String::new();
    for area in Area::ALL {
        let of: Vec<&Check> = checks.iter().filter(|check| check.area == area).collect();
        if of.is_empty() {
            continue;
        }
        text += &format!("{} ({})\n", area.title(), of.len());
        for check in of {
            text += &format!("  {:42} {}\n", check.full_name(), check.requires);
        }
        text.push('\n');
    }
    text + &format!("{} checks\n", checks.len())
}

fn explain(check: &Check) -> String {
    let needs = match check.needs {
        conform::Needs::Reading if check.over == Over::Nfs => "it works in a directory of its own",
        conform::Needs::Reading => "nothing is changed by it",
        conform::Needs::Writing => "it writes to the unit (--write)",
        conform::Needs::Destruction => "it disturbs other sessions (--destructive)",
    };
    let over = match check.over {
        Over::Both => "TCP and iSER",
        Over::Tcp => "TCP",
        Over::Iser => "iSER",
        Over::Nfs => "TCP",
    };
    format!(
        "{}\n\n  {}\n\n  Clause:  {} ({})\n  Why:     {}\n  Over:    {over}; {needs}\n",
        check.full_name(),
        check.requires,
        check.clauses,
        check.level.name(),
        check.why,
    )
}

/// Shows progress: one line of the terminal names the running check; lines of failures stay.
fn show(live: bool, progress: Progress<'_>) {
    if !live {
        return;
    }
    match progress {
        Progress::Begins { check, done, of } => {
            out::to_stderr(format_args!("\r\x1b[K[{}/{of}] {}", done + 1, check.full_name()));
        }
        Progress::Ended(Record { check, outcome: Outcome::Fail { seen, .. }, .. }) => {
            say!("\r\x1b[Kfailed: {}: {seen}", check.full_name());
        }
        Progress::Ended(_) => {}
    }
}

fn clear(live: bool) {
    if live {
        out::to_stderr(format_args!("\r\x1b[K"));
    }
}
