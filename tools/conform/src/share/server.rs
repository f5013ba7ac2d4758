//! An NFS server as the subject of a run: finds its versions, makes the directory to work in, and
//! removes it.

use std::net::ToSocketAddrs;
use std::rc::Rc;

use runtime::Runtime;

use super::four::Four;
use super::lab::Lab;
use super::options::ShareOptions;
use super::three::{Three, mounted};
use crate::check::{Check, Test};
use crate::finding::{Finding, Verdict, told, untested};
use crate::report::Report;
use crate::runner::{Progress, RunError, Subject, judge_all};

/// Attempts, each with the time limit of a check, to open a file while the server is in its grace
/// period.
const GRACE: u32 = 5;

/// Runs the `checks` of NFS against an export, in their order; those of iSCSI are skipped. It works
/// in a directory of its own in the export, and removes it.
///
/// # Errors
/// [`RunError`]: the server cannot be reached, or no version lets the run make its directory.
pub fn run_share(
    options: ShareOptions,
    checks: &[Check],
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let began = runtime::clock();
    let addresses = (options.host.as_str(), options.port).to_socket_addrs();
    let addresses = addresses
        .map_err(|error| RunError::Resolve { host: options.host.clone(), reason: error.to_string() })?;
    let rdma = match options.rdma {
        true => Some(Rc::new(Runtime::new(runtime::Config::default()).map_err(RunError::NoRing)?)),
        false => None,
    };
    let mut lab = Lab::new(options, addresses.collect(), rdma);
    lab.begin();
    lab.connect().map_err(|finding| RunError::Unreachable(told(finding)))?;
    if lab.options.v3 {
        lab.three = three(&lab);
    }
    if let Some(minor) = lab.options.minor {
        lab.four = four(&lab, minor);
    }
    let checks: Vec<&Check> = checks.iter().filter(|check| matches!(check.test, Test::Nfs(_))).collect();
    if let (Err(three), Err(four)) = (&lab.three, &lab.four) {
        let (three, four) = (told(three.clone()), told(four.clone()));
        return Err(RunError::Refused(format!("version 3: {three}; version 4: {four}")));
    }
    Ok(judge_all(&Server { lab }, &checks, began, tell))
}

/// The export's root in version 3, with the directory to work in.
fn three(lab: &Lab) -> Result<Vec<u8>, Finding> {
    let root = mounted(&mut lab.mount()?, &lab.options.path).or_else(|finding| untested(told(finding)))?;
    let mut client = Three { conn: lab.connect()?, dir: Vec::new() };
    client.folder(&root, &lab.place())?;
    Ok(root)
}

/// The minor version of version 4, `most` at most, with the directory to work in. Waits until a
/// grace period of the server is over.
fn four(lab: &Lab, most: u32) -> Result<u32, Finding> {
    let mut minor = most;
    let mut client = loop {
        match Four::begin(lab, minor, "first") {
            Ok(client) => break client,
            Err(_) if minor > 1 => minor -= 1,
            Err(finding) => return untested(told(finding)),
        }
    };
    let export = client.path(&[])?;
    if client.handle_of(&export, &lab.place()).is_err() {
        client.folder(&export, &lab.place())?;
    }
    client.dir = client.path(&[lab.place().as_bytes()])?;
    for _ in 0..GRACE {
        lab.begin();
        if client.opened("grace", "o", super::four::READ, 0).is_ok() {
            break;
        }
    }
    lab.begin();
    Ok(minor)
}

struct Server {
    lab: Lab,
}

impl Subject for Server {
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

    fn forbids(&self, _: &Check) -> Option<String> {
        None
    }

    fn judge(&self, check: &Check) -> Verdict {
        match check.test {
            Test::Nfs(run) => run(&self.lab),
            Test::Iscsi(_) => untested("it is a check of iSCSI"),
        }
    }

    fn tidy(&self) -> Option<String> {
        self.lab.begin();
        let place = self.lab.place();
        let removed = match &self.lab.three {
            Ok(root) => self.lab.connect().and_then(|conn| {
                let mut client = Three { conn, dir: Vec::new() };
                client.remove_all(root, &place)
            }),
            Err(_) => Four::client(&self.lab, "first").and_then(|mut client| {
                let export = client.path(&[])?;
                client.remove_all(&export, &place)
            }),
        };
        let why = told(removed.err()?);
        Some(format!("the directory {place} could not be removed from the export: {why}"))
    }
}
