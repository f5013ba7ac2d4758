//! A world in which several clients of NFSv4 open files, deny them to each other, lock parts of
//! them and hold delegations, while connections break, requests come twice, clients fall asleep for
//! longer than their lease or start anew, and the server is changed, replaced and killed.
//!
//! The [`oracle`] has the rules. No client gets a lock or an open that conflicts with one surely
//! held by another. No client is denied one without a possible conflict. A session is lost only by
//! a restart or an expired lease. After a restart everything that was acknowledged can be
//! reclaimed. A locked cell reads as the value written last, and no request is executed twice.

mod back;
mod client;
mod held;
pub(crate) mod host;
mod oracle;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nfs::v4::state::Limits;
use nfs::v4::{Arguments, Close, CreateHow, Fattr, Open, Stateid, flags};
use runtime::sim::{self, Network};

use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use client::{Client, NoReply};
use host::Host;
use oracle::{Oracle, Owner};
use work::{Process, named};

/// The export.
pub(crate) const EXPORT: &str = "data";
/// Files that clients open.
const FILES: usize = 3;
const TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// A planted fault that must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The server keeps no record of clients that may reclaim.
    NoRecords,
    /// A server that takes over gets no state.
    NothingCarried,
}

/// Runs a seed. `loud` prints each request and its outcome.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    run_with(seed, None, loud)
}

/// Runs a seed with a planted fault.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Result<Report, Box<Failure>> {
    run_with(seed, Some(sabotage), false)
}

fn run_with(seed: u64, sabotage: Option<Sabotage>, loud: bool) -> Result<Report, Box<Failure>> {
    let mut rng = Rng::new(seed ^ 0x4e45_5453);
    let network = Network {
        jitter: Duration::from_micros(rng.pick(&[20, 20, 2000, 200_000])),
        lost_per_million: rng.pick(&[0, 0, 1000, 50_000]),
        window: rng.pick(&[4096, 256 << 10]),
        segment: rng.pick(&[1, 100, 64 << 10, 64 << 10]),
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--nfs-state", seed, config, move || whole(seed, sabotage, loud))
}

/// Numbers written to one cell.
#[derive(Default)]
struct Content {
    /// The last number that was surely written.
    last: u64,
    /// Numbers that may have been written since.
    maybe: Vec<u64>,
}

/// State that all clients share.
struct Books {
    oracle: RefCell<Oracle>,
    /// By file and cell.
    contents: RefCell<BTreeMap<(usize, usize), Content>>,
    numbers: Cell<u64>,
    /// Requests that were executed, and those that were sent twice at once.
    commands: Cell<u64>,
    twice: Cell<u64>,
    verdict: Verdict,
}

impl Books {
    /// A number that no client has written.
    fn next_number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Records that a number was written, surely or perhaps.
    fn wrote(&self, at: (usize, usize), number: u64, surely: bool) {
        let mut contents = self.contents.borrow_mut();
        let content = contents.entry(at).or_default();
        match surely {
            true => *content = Content { last: number, maybe: Vec::new() },
            false => content.maybe.push(number),
        }
    }

    /// Checks a number that was read under a lock.
    fn read(&self, at: (usize, usize), number: u64) -> Result<(), String> {
        let mut contents = self.contents.borrow_mut();
        let content = contents.entry(at).or_default();
        if number != content.last && !content.maybe.contains(&number) {
            let Content { last, maybe } = content;
            return Err(format!(
                "read {number} of {at:?}, where {last} or one of {maybe:?} was written last"
            ));
        }
        Ok(())
    }
}

async fn whole(seed: u64, sabotage: Option<Sabotage>, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x4e46_5334);
    let lease = Limits::default().lease;
    let mut host = Host::new(1 + rng.index(3), sabotage)?;
    host.start()?;
    let clients = 2 + rng.index(2);
    let books = Rc::new(Books {
        oracle: RefCell::new(Oracle::new(clients, lease)),
        contents: RefCell::default(),
        numbers: Cell::new(0),
        commands: Cell::new(0),
        twice: Cell::new(0),
        verdict: Verdict::new(loud),
    });
    let (mut processes, mut keepers) = (Vec::new(), Vec::new());
    let pause = rng.pick(&[20_000, 2_000_000, 20_000_000]);
    for number in 0..clients {
        let client = Client::connect(number, 1 + rng.index(2), books.clone(), rng.fork()).await?;
        if number == 0 {
            make_files(&client).await?;
        }
        for lane in 1..=1 + rng.index(3) {
            let owner = Owner { client: number, lane };
            let process =
                Process { client: client.clone(), owner, rng: RefCell::new(rng.fork()), made: Cell::new(0) };
            processes.push(runtime::spawn(process.work(30, pause)));
        }
        keepers.push(runtime::spawn(client.keep(lease)));
    }
    let restarts = troubles(&mut host, &books, &processes, &mut rng).await?;
    for task in processes.into_iter().chain(keepers) {
        task.await.map_err(|error| format!("a client: {error:?}"))?;
    }
    host.kill().await;
    if let Some(what) = books.verdict.wrong() {
        return Err(what);
    }
    let oracle = books.oracle.borrow();
    Ok(Report {
        commands: books.commands.get(),
        refused: oracle.denied,
        reclaimed: oracle.reclaimed,
        touched: books.twice.get(),
        restarts,
        ..Report::default()
    })
}

/// Makes the files that the clients open.
async fn make_files(client: &Client) -> Result<(), String> {
    for file in 0..FILES {
        let name = format!("file-{file}");
        let open = Arguments::Open(Open {
            seqid: 0,
            share_access: 3 | flags::want::NO_DELEG,
            share_deny: 0,
            owner: held::name(&Owner { client: 0, lane: 0 }),
            create: Some(CreateHow::Unchecked(Fattr::EMPTY)),
            claim: nfs::v4::Claim::Null(named(&name)),
        });
        let close = Arguments::Close(Close { seqid: 0, stateid: Stateid::CURRENT });
        match client.run(0, &work::in_export(&[open, close]), &[], || Ok(())).await {
            Ok(reply) => drop(reply.done()?),
            Err(NoReply::Wrong(what)) => return Err(what),
            Err(NoReply::Lost) => return Err("a session is lost at the beginning".to_owned()),
        }
    }
    Ok(())
}

/// Disturbs the server and the connections until all processes have ended. Returns the number of
/// kills of the server.
async fn troubles(
    host: &mut Host,
    books: &Books,
    running: &[runtime::JoinHandle<()>],
    rng: &mut Rng,
) -> Result<u64, String> {
    let mut restarts = 0;
    let mut left = rng.pick(&[0, 2, 5, 9]);
    let pause = rng.pick(&[50, 3000, 40_000]);
    while !running.iter().all(runtime::JoinHandle::is_finished) {
        runtime::sleep(Duration::from_millis(rng.below(pause))).await;
        if left == 0 || books.verdict.has_failed() {
            runtime::sleep(Duration::from_secs(1)).await;
            continue;
        }
        left -= 1;
        match rng.below(8) {
            0 | 1 => {
                let links = sim::links();
                if !links.is_empty() {
                    books.verdict.note(format_args!("a connection is reset"));
                    sim::reset(links[rng.index(links.len())]);
                }
            }
            2 => {
                let links = sim::links();
                if !links.is_empty() {
                    books.verdict.note(format_args!("a connection stalls"));
                    sim::stall(links[rng.index(links.len())], Duration::from_secs(rng.between(1, 20)));
                }
            }
            3 => host.apply().await?,
            4 | 5 => {
                books.verdict.note(format_args!("another server takes over"));
                host.take_over().await?;
                books.verdict.note(format_args!("it has taken over"));
            }
            _ => {
                books.verdict.note(format_args!("the server is killed"));
                host.kill().await;
                books.oracle.borrow_mut().killed();
                runtime::sleep(Duration::from_millis(rng.pick(&[1, 500, 20_000]))).await;
                host.start()?;
                books.oracle.borrow_mut().started();
                books.verdict.note(format_args!("it is started again"));
                restarts += 1;
            }
        }
    }
    Ok(restarts)
}
