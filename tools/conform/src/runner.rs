//! Runs checks, one after the other: each starts without state of the one before, and ends in time.

use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::discovery::TargetAddress;

use crate::check::{Check, Needs, Over};
use crate::finding::Finding;
use crate::lab::Lab;
use crate::login::{Answer, SECURITY};
use crate::options::{Options, Transport};
use crate::report::{Outcome, Record, Report};
use crate::scsi::{Command, read10, write10};

/// Maximum number of redirections to follow.
const REDIRECTIONS: usize = 4;

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A check starts.
    Begins {
        /// The check.
        check: &'a Check,
        /// Number of checks done before.
        done: usize,
        /// Total number of checks.
        of: usize,
    },
    /// A check ended.
    Ended(&'a Record),
}

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host name cannot be resolved.
    #[error("{host} cannot be resolved: {reason}")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's error.
        reason: String,
    },
    /// iSER needs an io_uring.
    #[error("no io_uring: {0}")]
    NoRing(std::io::Error),
    /// No answer, or not that of a target.
    #[error("the target cannot be reached: {0}")]
    Unreachable(String),
    /// The login is refused, so every check would fail.
    #[error("the target refuses a plain login: {0}")]
    Refused(String),
}

/// Runs `checks` against the target, in their order; those of the other transport are skipped.
///
/// # Errors
/// [`RunError`]: the target cannot be reached, or refuses the login.
pub fn run(
    options: Options,
    checks: &[Check],
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let began = Instant::now();
    let runtime = match options.transport {
        Transport::Tcp => None,
        Transport::Iser => {
            Some(Rc::new(runtime::Runtime::new(runtime::Config::default()).map_err(RunError::NoRing)?))
        }
    };
    let lab = reach(options, runtime)?;
    let checks: Vec<&Check> = checks
        .iter()
        .filter(|check| match check.over {
            Over::Both => true,
            Over::Tcp => !lab.is_iser(),
            Over::Iser => lab.is_iser(),
        })
        .collect();
    let saved = if lab.options.write { save(&lab) } else { Ok(None) };
    let mut records = Vec::new();
    let mut gone: Option<String> = None;
    for (done, check) in checks.iter().enumerate() {
        tell(Progress::Begins { check, done, of: checks.len() });
        let began = Instant::now();
        let mut outcome = match (check.needs, &saved) {
            _ if gone.is_some() => {
                Outcome::Untested(format!("the target is gone since {}", gone.clone().unwrap_or_default()))
            }
            (Needs::Writing, _) if !lab.options.write => Outcome::Untested("it writes: --write".to_owned()),
            (Needs::Destruction, _) if !lab.options.destructive => {
                Outcome::Untested("it disturbs other sessions: --destructive".to_owned())
            }
            (_, Err(why)) if check.needs == Needs::Writing => Outcome::Untested(why.clone()),
            _ => one(&lab, check),
        };
        if gone.is_none() && !matches!(outcome, Outcome::Pass) && !is_there(&lab) {
            gone = Some(check.full_name());
            outcome = Outcome::Fail {
                seen: "the target cannot be reached any more after this check".to_owned(),
                expected: "a target that lives on".to_owned(),
            };
        }
        let record = Record::new(check, outcome, began.elapsed());
        tell(Progress::Ended(&record));
        records.push(record);
    }
    let mut left_behind = None;
    if let Ok(Some(content)) = saved {
        left_behind = restore(&lab, &content).err();
    }
    Ok(Report::new(&lab.options, records, began.elapsed(), left_behind))
}

/// Whether the target accepts connections. Tries more than once, since it may be restarting.
fn is_there(lab: &Lab) -> bool {
    (0..3).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
        lab.begin();
        lab.connect().is_ok()
    })
}

fn one(lab: &Lab, check: &Check) -> Outcome {
    lab.begin();
    let result = (check.run)(lab);
    // A wait for a forbidden PDU may use up the check's time: then the result is unknown.
    if lab.is_over() && result.is_ok() {
        return Outcome::Untested("it took too long".to_owned());
    }
    match result {
        Ok(()) => Outcome::Pass,
        Err(Finding::Wrong { seen, expected }) => match check.level {
            crate::check::Level::Must => Outcome::Fail { seen, expected },
            crate::check::Level::Should => Outcome::Warning { seen, expected },
        },
        Err(Finding::Doubtful { seen, expected }) => Outcome::Warning { seen, expected },
        Err(Finding::NotApplicable(why)) => Outcome::NotApplicable(why),
        Err(Finding::Untested(why)) => Outcome::Untested(why),
    }
}

/// Finds the target, follows its redirections, and logs in once.
fn reach(mut options: Options, runtime: Option<Rc<runtime::Runtime>>) -> Result<Lab, RunError> {
    let mut redirection: Option<Answer> = None;
    for _ in 0..=REDIRECTIONS {
        let addresses = resolve(&options)?;
        let lab = Lab::new(options.clone(), addresses, runtime.clone());
        lab.begin();
        let mut conn = lab.connect().map_err(|finding| RunError::Unreachable(told(finding)))?;
        let login = lab.normal();
        let mut keys = lab.names(&login);
        keys.push(("AuthMethod", if options.account.is_some() { "CHAP" } else { "None" }));
        let answer =
            conn.login_step(SECURITY, None, &keys).map_err(|finding| RunError::Unreachable(told(finding)))?;
        drop(conn);
        if answer.status() >> 8 == 1 {
            let moved = answer.get("TargetAddress").and_then(TargetAddress::parse);
            let Some(moved) = moved else {
                return Err(RunError::Refused(format!("{}, without a TargetAddress", answer.told())));
            };
            (options.host, options.port) = (moved.host, moved.port);
            redirection.get_or_insert(answer);
            continue;
        }
        lab.open(&lab.normal()).map_err(|finding| RunError::Refused(told(finding)))?;
        lab.redirection.replace(redirection);
        return Ok(lab);
    }
    Err(RunError::Refused("it redirects without end".to_owned()))
}

fn resolve(options: &Options) -> Result<Vec<SocketAddr>, RunError> {
    let found = (options.host.as_str(), options.port).to_socket_addrs();
    found
        .map(Iterator::collect)
        .map_err(|error| RunError::Resolve { host: options.host.clone(), reason: error.to_string() })
}

fn told(finding: Finding) -> String {
    match finding {
        Finding::Wrong { seen, .. } | Finding::Doubtful { seen, .. } => seen,
        Finding::NotApplicable(why) | Finding::Untested(why) => why,
    }
}

/// Number of blocks that one command saves or restores.
const PIECE: u16 = 64;

type Saved = (u32, u32, Vec<u8>);

/// Saves the area that checks write to: its first block, the block length, its bytes.
fn save(lab: &Lab) -> Result<Option<Saved>, String> {
    lab.begin();
    let read = || {
        let mut conn = lab.ready(&[])?;
        let out = lab.outgoing(&mut conn, 1)?;
        let unit = lab.unit(&mut conn)?;
        let blocks = Options::AREA.div_ceil(unit.block_len.into());
        let mut content = Vec::new();
        let mut at = 0;
        while at < blocks {
            let count = u64::from(PIECE).min(blocks - at) as u16;
            let bytes = u32::from(count) * unit.block_len;
            let done = conn.run(&Command::reading(&read10(out.lba + at as u32, count), bytes))?;
            content.extend(done.good("saving what will be written over")?.data);
            at += u64::from(count);
        }
        Ok((out.lba, unit.block_len, content))
    };
    read().map(Some).map_err(|finding| format!("what is there could not be saved: {}", told(finding)))
}

/// Restores the saved area.
fn restore(lab: &Lab, (lba, block_len, content): &Saved) -> Result<(), String> {
    lab.begin();
    let write = || {
        let mut conn = lab.ready(&[])?;
        let piece = usize::from(PIECE) * *block_len as usize;
        for (number, part) in content.chunks(piece).enumerate() {
            let at = lba + number as u32 * u32::from(PIECE);
            let blocks = (part.len() / *block_len as usize) as u16;
            conn.run(&Command::writing(&write10(at, blocks), part.to_vec()))?.good("writing back")?;
        }
        Ok(())
    };
    write().map_err(|finding| format!("what was there before could not be written back: {}", told(finding)))
}
