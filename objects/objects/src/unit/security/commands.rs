//! SET KEY and SET MASTER KEY. Owns what the two do to the hierarchy, and whose key signs for which
//! command.

use device::NexusId;
use osd::cdb::{KeyToSet, SetKey, SetMasterKey};
use osd::security::{Algorithm, KeyPair, dh, keys::KEY_ID_LEN};
use osd::sense::code;
use osd::{Command, Id, ObjectType};
use runtime::Buf;

use super::super::failure::Failure;
use super::super::frame::Plan;
use super::super::task::{Task, Touch};
use super::keyring::{Kept, Name};
use super::refused;
use crate::store::Change;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    Master,
    Root,
    /// The partition key of this partition.
    Partition(u64),
    /// The working key of the capability's partition that its KEY VERSION names.
    Working,
}

/// The key that has to sign the capability of `command`.
pub(super) const fn signer(command: &Command) -> Signer {
    match command {
        Command::SetMasterKey(_) => Signer::Master,
        Command::SetKey(set) => match set.key {
            KeyToSet::Root => Signer::Master,
            KeyToSet::Partition => Signer::Root,
            KeyToSet::Working => Signer::Partition(set.partition),
        },
        _ => Signer::Working,
    }
}

/// While there is no master key, any initiator may have a unit compute exchanges, which takes
/// milliseconds of a core each: so many in a row, and one more after each of these times.
const EXCHANGES: u64 = 8;
const EXCHANGE_MS: u64 = 250;

/// The time, in milliseconds since 1970, from which on all [`EXCHANGES`] may be computed again.
#[derive(Default)]
pub(in super::super) struct ExchangeRate(AtomicU64);

impl ExchangeRate {
    /// Whether one may be computed at `now`, which then counts.
    fn admits(&self, now: u64) -> bool {
        let most = EXCHANGES * EXCHANGE_MS;
        let next = |full: u64| {
            // One that is further away is from before the clock was set back.
            let full = if full > now.saturating_add(most) { now } else { full.max(now) } + EXCHANGE_MS;
            (full <= now.saturating_add(most)).then_some(full)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// State that SET MASTER KEY's first step has left for the second.
pub(in super::super) struct Exchange {
    nexus: NexusId,
    group: u8,
    id: [u8; KEY_ID_LEN],
    algorithm: Algorithm,
    new: KeyPair,
}

/// The algorithm that derives a key: the one that the command is proved with, or else the strongest
/// of its form.
fn algorithm(task: &Task<'_>) -> Algorithm {
    match &task.proof {
        Some(proof) => proof.algorithm,
        None => Algorithm::of_form(task.cdb.form),
    }
}

/// SET KEY: derives a key from the one above it and the seed. Keys below the one that is replaced
/// are in force no more. The new key is on the medium when the command ends.
pub(in super::super) async fn set_key(task: &mut Task<'_>, set: SetKey) -> Result<(), Failure> {
    let (id, unit) = (task.cdb.command.id(), task.unit);
    let name = match set.key {
        KeyToSet::Root => Name::Root,
        KeyToSet::Partition => Name::Partition(set.partition),
        KeyToSet::Working => Name::Working(set.partition, set.version),
    };
    let of_type = if id.is_root() { ObjectType::Root } else { ObjectType::Partition };
    // No other command that keeps or removes keys comes between the look at the key above and the
    // new one.
    task.mutate(
        |_| {
            if set.key == KeyToSet::Root && set.partition != 0 {
                return Err(Failure::cdb(16));
            }
            if set.partition != 0 {
                unit.store.partition(set.partition)?;
            }
            Ok(Plan::of(id, of_type, Touch::None))
        },
        |task, change| {
            // There is no key to derive it from: KEY TO SET asks for what cannot be.
            let parent = match name.parent() {
                Some(parent) => unit.key(parent)?,
                None => None,
            };
            let parent = parent.ok_or_else(|| Failure::cdb_bit(11, 1))?;
            let pair = parent.pair.derive(algorithm(task), &set.seed);
            unit.keep_key(name, &Kept::new(set.key_id, pair, Some(&parent)), change);
            Ok(())
        },
    )
    .await
}

/// SET MASTER KEY: step 0 exchanges public values, step 1 changes the key if the initiator proves
/// that it has the same.
pub(in super::super) async fn set_master_key(task: &mut Task<'_>, set: SetMasterKey) -> Result<(), Failure> {
    if set.step > 1 {
        return Err(Failure::cdb_bit(11, 1));
    }
    if set.group != dh::GROUP {
        return Err(Failure::cdb(24));
    }
    let most = dh::EXCHANGE_LEN as u32;
    if set.parameter_len > most {
        return Err(Failure::cdb(32));
    }
    let data = task.take_data(0, u64::from(set.parameter_len)).await?.to_vec();
    task.mutate(
        |_| Ok(Plan::of(Id::ROOT, ObjectType::Root, Touch::None)),
        |task, steps| match set.step {
            0 => exchange(task, set, &data),
            _ => change(task, set, &data, steps),
        },
    )
    .await
}

fn exchange(task: &mut Task<'_>, set: SetMasterKey, data: &[u8]) -> Result<(), Failure> {
    if set.allocation < dh::EXCHANGE_LEN as u32 {
        return Err(Failure::cdb(36));
    }
    let theirs = dh::parse_exchange(data).ok_or_else(|| Failure::parameter(0))?;
    if task.proof.is_none() && !task.unit.security.exchange_rate.admits(task.unit.now()) {
        return Err(Failure::busy());
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|_| Failure::busy())?;
    let exponent = dh::Exponent::new(random);
    let shared = exponent.shared(&theirs).map_err(|_| Failure::parameter(4))?;
    let algorithm = algorithm(task);
    let old = task.unit.key(Name::Master)?;
    let new = dh::master(algorithm, old.as_ref().map(|kept| &kept.pair), &shared);
    let nexus = task.command.nexus.nexus.id;
    // One exchange at a time: a later one takes the place of one that was not finished.
    *task.unit.security.exchange.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Exchange { nexus, group: set.group, id: set.key_id, algorithm, new });
    task.transfer.put(Buf::from(dh::exchange(&exponent.public())));
    Ok(())
}

fn change(task: &Task<'_>, set: SetMasterKey, data: &[u8], change: &mut Change) -> Result<(), Failure> {
    let nexus = task.command.nexus.nexus.id;
    let exchange = {
        let mut pending = task.unit.security.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        // Only by the nexus that began it, and of the key that it was begun for. It is over then,
        // whether it succeeds or not.
        pending.take_if(|exchange| {
            exchange.nexus == nexus && exchange.group == set.group && exchange.id == set.key_id
        })
    };
    let Some(exchange) = exchange else { return Err(Failure::cdb(25)) };
    let proof = dh::confirmation(exchange.algorithm, &exchange.new.authentication, &exchange.id);
    if !proof.is(data) {
        return Err(refused(code::INVALID_DATA_OUT_ICV));
    }
    task.unit.keep_key(Name::Master, &Kept::new(exchange.id, exchange.new, None), change);
    Ok(())
}
