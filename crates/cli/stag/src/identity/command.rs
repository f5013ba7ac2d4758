//! `stag identity`: shows the identity of units on media, and decides which of two copies keeps it.

use std::fs::File;
use std::path::Path;

use device::Names;
use rustix::fs::FlockOperation;

use super::record::{Home, Kept, Origin, Record};
use super::{device_key, home, is_device, is_store, random};
use crate::args;
use crate::exit::Exit;
use crate::out;
use crate::state::hex;
use crate::unit::Backing;

/// Shows or settles the identity of each path.
pub fn command(args: &args::Identity) -> Exit {
    let mut exit = Exit::Done;
    let mut found = String::new();
    for path in &args.paths {
        match one(path, args) {
            Ok(said) => found.push_str(&format!("{}: {said}\n", path.display())),
            Err(why) => {
                say!("stag: {}: {why}", path.display());
                exit = Exit::Failed;
            }
        }
    }
    match (out::print(&found), exit) {
        (Exit::Done, exit) => exit,
        (unprinted, _) => unprinted,
    }
}

/// A path's record, and the data needed to change it.
struct Found {
    home: Home,
    record: Option<(Kept, Record)>,
    now: Option<Origin>,
}

fn one(path: &Path, args: &args::Identity) -> Result<String, String> {
    let found = find(path)?;
    if args.new {
        let _alone = alone(path)?;
        let names = random().map_err(|error| error.to_string())?;
        let record = Record::new(&names, found.now.clone());
        match &found.record {
            Some((kept, _)) => found.home.put(kept, &record)?,
            None => drop(found.home.keep(&record)?),
        }
    } else if let (true, Some((kept, record)), Some(now)) = (args.keep, &found.record, &found.now) {
        let _alone = alone(path)?;
        found.home.put(kept, &record.moved_to(now.clone()))?;
    }
    let Some((kept, record)) = find(path)?.record else {
        return Ok("no identity of its own yet: it gets one when it is served first".into());
    };
    if let (Some(of), Some(now)) = (record.origin(), &found.now) {
        super::admit(of, now)?;
    }
    let Names { serial, naa } = record.names().ok_or("its identity has no names")?;
    Ok(format!("naa.{}, serial {serial}, kept in {kept}", hex(&naa)))
}

fn find(path: &Path) -> Result<Found, String> {
    let real = std::fs::canonicalize(path).map_err(|error| error.to_string())?;
    let home = match real {
        _ if is_device(path) => home(&Backing::Path(path.to_owned()), None, Some(&device_key(path))),
        _ if real.is_dir() && (is_store(&real) || real.join("identity").exists()) => {
            home(&Backing::Objects(real.clone()), Some(&real), None)
        }
        _ if real.is_file() => home(&Backing::Path(real.clone()), Some(&real), None),
        _ => return Err("it is no file, no device and no store of objects".into()),
    };
    let home = home.map_err(|error| error.to_string())?;
    let now = home.file.is_some().then(|| Origin::of(&real)).transpose();
    let now = now.map_err(|error| error.to_string())?;
    Ok(Found { record: home.find()?, home, now })
}

/// Makes sure that no daemon serves the path, or can begin to while the returned file is open.
fn alone(path: &Path) -> Result<File, String> {
    let held = if path.is_dir() { path.join("arena") } else { path.to_owned() };
    let file = File::open(&held).map_err(|error| error.to_string())?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err("it is being served: take it out first, its initiators know it by its identity".into()),
    }
}
