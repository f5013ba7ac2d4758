//! One gateway of a group without a server, for tests of `ceph::group`.
//!
//! `gateway CONF USER POOL OBJECT ID UNIT=IMAGE…`, with all images in the pool. Commands come on
//! standard input, one a line, and what happens goes to standard output as lines of JSON:
//!
//! - `view`; `move UNIT ID`; `spread`; `leave`.
//! - `write UNIT BLOCK VALUE`, `read UNIT BLOCK`: a block of 4 KiB, if the unit is here.
//! - `hammer UNIT BLOCK FIRST`: writes numbers to a block and never asks whether the unit is still
//!   here, until a write fails: what a gateway does that is not told.
//! - `count UNIT BLOCK`: increments a number whenever the unit is here. Two owners at a time would
//!   lose increments.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ceph::group::{Group, GroupConfig, Report, Serving};
use ceph::{ImageName, Login};
use cluster::{GatewayId, Place, Request, Timers, UnitId};
use runtime::{Bytes, Runtime, pool};

const BLOCK: usize = 4096;
/// ESHUTDOWN, ETIMEDOUT, EROFS: the gateway is fenced, or the outcome is unknown.
const LOST: [i32; 3] = [108, 110, 30];

/// The units that are here.
type Here = Arc<Mutex<BTreeMap<UnitId, Serving>>>;

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Who reads may have gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn serving(here: &Here, unit: UnitId) -> Option<Serving> {
    here.lock().unwrap_or_else(PoisonError::into_inner).get(&unit).cloned()
}

async fn write(serving: &Serving, block: u64, value: u64) -> io::Result<()> {
    let bytes = Bytes::from(value.to_be_bytes().repeat(BLOCK / 8));
    serving.image().write(block * BLOCK as u64, [bytes].into_iter().collect()).await
}

async fn read(serving: &Serving, block: u64) -> io::Result<u64> {
    let memory = pool::alloc(BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
    let (_, memory) = serving.image().read(block * BLOCK as u64, [memory].into_iter().collect()).await?;
    let first = memory.first().and_then(|buf| buf.first_chunk::<8>()).copied().unwrap_or_default();
    Ok(u64::from_be_bytes(first))
}

/// Says a failure, and has the life end where it must.
fn failed(serving: &Serving, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or_default();
    if LOST.contains(&errno) {
        serving.lost(&error.to_string());
    }
    say(&format!(r#"{{"failed": {}, "errno": {errno}}}"#, serving.unit().0));
}

fn hammer(serving: &Serving, block: u64, first: u64) {
    let Ok(runtime) = Runtime::new(runtime::Config::default()) else { return };
    for value in first.. {
        if let Err(error) = runtime.block_on(write(serving, block, value)) {
            let (unit, errno) = (serving.unit().0, error.raw_os_error().unwrap_or_default());
            return say(&format!(r#"{{"hammered": {unit}, "last": {}, "errno": {errno}}}"#, value - 1));
        }
    }
}

fn count(here: &Here, unit: UnitId, block: u64) {
    let Ok(runtime) = Runtime::new(runtime::Config::default()) else { return };
    loop {
        std::thread::sleep(Duration::from_millis(1));
        let Some(serving) = serving(here, unit) else { continue };
        let Some(_begun) = serving.begin() else { continue };
        let next = async {
            let value = read(&serving, block).await?;
            say(&format!(r#"{{"counting": {}}}"#, unit.0));
            write(&serving, block, value + 1).await
        };
        match runtime.block_on(next) {
            Ok(()) => say(&format!(r#"{{"counted": {}}}"#, unit.0)),
            Err(error) => failed(&serving, &error),
        }
    }
}

fn view(group: &Group) {
    let status = group.status();
    let Some(view) = status.view else { return say(r#"{"view": null}"#) };
    let members: Vec<u16> = view.gateways.iter().map(|row| row.gateway.0).collect();
    let owner = |(unit, place): &(UnitId, Place)| match place {
        Place::Owned { by } => format!(r#""{}": {}"#, unit.0, by.0),
        _ => format!(r#""{}": null"#, unit.0),
    };
    let owners: Vec<String> = view.units.iter().map(owner).collect();
    let here: Vec<u32> = view.here.iter().map(|unit| unit.0).collect();
    say(&format!(
        r#"{{"view": {{"life": {}, "members": {members:?}, "owners": {{{}}}, "here": {here:?}, "fences": {}, "barrier": {}}}}}"#,
        status.life,
        owners.join(", "),
        view.fences.len(),
        view.barrier.0,
    ));
}

fn report(here: &Here, report: Report) {
    let mut here = here.lock().unwrap_or_else(PoisonError::into_inner);
    say(&match report {
        Report::Begins { instance, addresses } => {
            format!(r#"{{"begins": {}, "addresses": {addresses:?}}}"#, instance.0)
        }
        Report::Serve(serving) => {
            let unit = serving.unit();
            serving.opened();
            here.insert(unit, serving);
            format!(r#"{{"serve": {}}}"#, unit.0)
        }
        Report::Gone(unit) => {
            here.remove(&unit);
            format!(r#"{{"gone": {}}}"#, unit.0)
        }
        // `view` tells.
        Report::Changed(_) => return,
        Report::Over { why, .. } => format!(r#"{{"over": {why:?}}}"#),
        Report::Problem(why) => format!(r#"{{"problem": {why:?}}}"#),
    });
}

fn ask(group: &Group, asked: Request) {
    let start = Instant::now();
    group.ask(
        asked,
        Box::new(move |outcome| {
            let told = outcome.map_or_else(|error| error.to_string(), |()| "done".into());
            say(&format!(r#"{{"answer": {told:?}, "ms": {}}}"#, start.elapsed().as_millis()));
        }),
    );
}

fn command(group: &Group, here: &Here, line: &str) -> Option<()> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let unit = UnitId(numbers.first().copied().unwrap_or_default() as u32);
    match (name, &numbers[..]) {
        ("view", []) => view(group),
        ("move", [_, to]) => ask(group, Request::Move(unit, GatewayId(*to as u16))),
        ("spread", []) => ask(group, Request::Spread),
        ("leave", []) => ask(group, Request::Leave),
        ("hammer", [_, block, first]) => {
            let (serving, block, first) = (serving(here, unit)?, *block, *first);
            std::thread::spawn(move || hammer(&serving, block, first));
        }
        ("count", [_, block]) => {
            let (here, block) = (here.clone(), *block);
            std::thread::spawn(move || count(&here, unit, block));
        }
        ("write" | "read", [_, block, ..]) => {
            let serving = serving(here, unit)?;
            let _begun = serving.begin()?;
            let done = Runtime::new(runtime::Config::default()).ok()?.block_on(async {
                match numbers.get(2) {
                    Some(value) => write(&serving, *block, *value).await.map(|()| *value),
                    None => read(&serving, *block).await,
                }
            });
            match done {
                Ok(value) => say(&format!(r#"{{"did": {value}}}"#)),
                Err(error) => failed(&serving, &error),
            }
        }
        _ => return None,
    }
    Some(())
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [conf, user, pool, object, id, units @ ..] = &words[..] else {
        return eprintln!("gateway CONF USER POOL OBJECT ID UNIT=IMAGE…");
    };
    let unit = |word: &String| {
        let (number, image) = word.split_once('=')?;
        let name = ImageName { pool: pool.clone(), namespace: None, image: image.into(), snapshot: None };
        Some((UnitId(number.parse().ok()?), name))
    };
    let config = GroupConfig {
        login: Login { user: Some(user.clone()), conf: Some(conf.into()) },
        pool: pool.clone(),
        namespace: None,
        object: object.clone(),
        gateway: GatewayId(id.parse().unwrap_or_default()),
        protocol: 1..=1,
        secret: 1,
        units: units.iter().filter_map(unit).collect(),
        op_timeout: Duration::from_secs(60),
        timers: Timers::default(),
    };
    let here = Here::default();
    let reports = here.clone();
    let group = match Group::start(config, Box::new(move |happened| report(&reports, happened))) {
        Ok(group) => group,
        Err(error) => return eprintln!("{error}"),
    };
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if command(&group, &here, &line).is_none() {
            say(r#"{"did": null}"#);
        }
    }
}
