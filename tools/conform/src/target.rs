//! An iSCSI target as the subject of a run: finds it, follows its redirections, and restores the
//! blocks that checks wrote to.

use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use iscsi::discovery::TargetAddress;

use crate::check::{Check, Needs, Over, Test};
use crate::finding::{Verdict, told, untested};
use crate::lab::Lab;
use crate::login::{Answer, SECURITY};
use crate::options::{Options, Transport};
use crate::report::Report;
use crate::runner::{Progress, RunError, Subject, judge_all};
use crate::scsi::{Command, read10, write10};

/// Maximum number of redirections to follow.
const REDIRECTIONS: usize = 4;

/// A target, and the former content of the area that checks write to.
struct Target {
    lab: Lab,
    saved: Result<Option<Saved>, String>,
}

/// Runs `checks` against an iSCSI target, in their order; those of another transport or protocol
/// are skipped.
///
/// # Errors
/// [`RunError`]: the target cannot be reached, or refuses the login.
pub fn run(
    options: Options,
    checks: &[Check],
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let began = runtime::clock();
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
            Over::Nfs => false,
        })
        .collect();
    let saved = if lab.options.write { save(&lab) } else { Ok(None) };
    Ok(judge_all(&Target { lab, saved }, &checks, began, tell))
}

impl Subject for Target {
    fn url(&self) -> String {
        self.lab.options.url()
    }

    fn begin(&self) {
        self.lab.begin();
    }

    fn is_over(&self) -> bool {
        self.lab.is_over()
    }

    fn is_there(&self) -> bool {
        self.lab.connect().is_ok()
    }

    fn forbids(&self, check: &Check) -> Option<String> {
        match (check.needs, &self.saved) {
            (Needs::Writing, _) if !self.lab.options.write => Some("it writes: --write".to_owned()),
            (Needs::Destruction, _) if !self.lab.options.destructive => {
                Some("it disturbs other sessions: --destructive".to_owned())
            }
            (Needs::Writing, Err(why)) => Some(why.clone()),
            _ => None,
        }
    }

    fn judge(&self, check: &Check) -> Verdict {
        match check.test {
            Test::Iscsi(run) => run(&self.lab),
            Test::Nfs(_) => untested("it is a check of NFS"),
        }
    }

    fn tidy(&self) -> Option<String> {
        let content = self.saved.as_ref().ok()?.as_ref()?;
        restore(&self.lab, content).err()
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
