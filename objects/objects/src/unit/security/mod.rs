//! Security checks of a command before it runs, and the seal of its end. The unit calls these; a
//! unit without a security method (NOSEC) lets everything through and looks at no capability.
//!
//! Owns the order of the checks: the capability's signer, the client's proof that it holds the key,
//! the freshness of the request, and last what the capability permits ([`permits`]). A client that
//! has not proved to hold the key learns nothing of the rest. The computations are
//! `osd::security`'s; `docs/src/objects/security.md` describes the whole.

mod attributes;
mod commands;
mod keyring;
mod permits;
#[cfg(test)]
mod reach_tests;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use device::Nexus;
use osd::attributes::numbers::{collection_security, partition_security, root_security, user_security};
use osd::attributes::{AttributeId, Page};
use osd::security::nonce::{MAX_LIMIT, Window};
use osd::security::{Algorithm, Direction, Key, Method, NonceError, Nonces, Sealer, credential};
use osd::sense::{Descriptor, code, function};
use osd::{Command, Id, ObjectType, Version, capability, security};
use scsi::{Sense, Status};
use smallvec::SmallVec;

use super::OsdUnit;
use super::failure::{Failure, additional};
use super::scan::{BATCH, Walk};
use super::task::Task;
use crate::store::{Change, List, ObjectStore};

pub(super) use commands::{Exchange, ExchangeRate, set_key, set_master_key};
use commands::{Signer, signer};
use keyring::{Mark, Name};
use permits::copy_sources;

/// Request nonces that are remembered of each partition.
const NONCES: usize = 65_536;
/// Bytes of Data-Out that one command under ALLDATA may bring: all of them are held until their
/// integrity is proved, so that nothing altered reaches an object.
pub(super) const MAX_SEALED: u64 = 8 << 20;
const CAPABILITY: u16 = 80;

pub(super) struct Security {
    /// A secret of this run of the unit: security tokens are made of it.
    boot: Key,
    /// BOOT EPOCH: another one after each start.
    epoch: u16,
    /// Some partition or the root demands a method: their attributes have to be asked.
    demanded: AtomicBool,
    nonces: Mutex<Nonces>,
    /// SET MASTER KEY between its two steps.
    exchange: Mutex<Option<Exchange>>,
    exchange_rate: ExchangeRate,
}

impl Security {
    /// Of a unit that starts at `now` on `store`.
    pub fn new(store: &dyn ObjectStore, now: u64) -> Self {
        let mut secret = [0; 32];
        // Without randomness tokens would be guessable; nonces and signatures do not depend on it.
        // Such a system has no security to lose: it makes no session keys either.
        if getrandom::fill(&mut secret).is_err() {
            tracing::error!("the system has no randomness: security tokens can be guessed");
            secret[..8].copy_from_slice(&now.to_be_bytes());
        }
        let start = now / 1000;
        Self {
            // 32 bytes are a key.
            boot: Key::new(&secret).unwrap_or_else(osd::security::KeyPair::initial),
            epoch: (start % 65_535) as u16 + 1,
            demanded: AtomicBool::new(demands(store)),
            nonces: Mutex::new(Nonces::new(now, NONCES)),
            exchange: Mutex::new(None),
            exchange_rate: ExchangeRate::default(),
        }
    }

    /// Whether the unit has anything that not every client may read. A page sent without a copy
    /// shows its contents at the time of sending. A reader may stall until its object is gone and
    /// another has its place, so such a unit sends copies.
    pub fn has_secrets(&self) -> bool {
        self.demanded.load(Ordering::Relaxed)
    }

    /// From now on attributes have to be asked which method is demanded.
    fn demand(&self) {
        self.demanded.store(true, Ordering::SeqCst);
    }
}

/// Whether the root or a partition demands a method. A store that cannot tell is taken to.
fn demands(store: &dyn ObjectStore) -> bool {
    let said = |id: Id, attribute: AttributeId| {
        let mut value = Vec::new();
        match store.attribute(id, attribute.page.0, attribute.number, &mut value) {
            Ok(there) => there && value.iter().any(|byte| *byte != 0),
            Err(_) => true,
        }
    };
    if said(Id::ROOT, root_security::DEFAULT_METHOD)
        || said(Id::ROOT, root_security::PARTITION_DEFAULT_METHOD)
    {
        return true;
    }
    let mut from = 0;
    loop {
        let mut ids = Vec::new();
        let more = store.list(List::Partitions, from, 1024, &mut ids);
        if ids.iter().any(|id| said(Id::partition(*id), partition_security::DEFAULT_METHOD)) {
            return true;
        }
        match (more, ids.last().and_then(|last| last.checked_add(1))) {
            (Ok(true), Some(next)) => from = next,
            (Ok(_), _) => return false,
            (Err(_), _) => return true,
        }
    }
}

/// The proof of a command, and the key that seals its answer.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    method: Method,
    /// The key that signed the capability, and its mark at that time.
    signer: (Name, Mark),
    algorithm: Algorithm,
    key: Key,
    nonce: [u8; 12],
}

impl Proof {
    /// RESPONSE INTEGRITY CHECK VALUE of GOOD; zeros where the method has none.
    fn response_of_good(&self) -> [u8; 32] {
        if self.method < Method::CmdRsp {
            return [0; 32];
        }
        security::response(self.algorithm, &self.key, &self.nonce, Status::Good as u8, &[]).field()
    }

    /// Adds the response's integrity check value to sense data.
    pub fn seal_sense(&self, status: Status, sense: &mut Sense) {
        if self.method < Method::CmdRsp {
            return;
        }
        let len = self.algorithm.len();
        sense.descriptors.extend(Descriptor::ResponseIcv(vec![0; len]).emit());
        let bytes = sense.emit_descriptor();
        let value = security::response(self.algorithm, &self.key, &self.nonce, status as u8, &bytes);
        let at = sense.descriptors.len() - len;
        sense.descriptors[at..].copy_from_slice(value.bytes());
    }
}

/// The refusal of a capability's field at `offset` of it.
fn capability_field(offset: u16) -> Failure {
    Failure::cdb(CAPABILITY + offset)
}

fn refused(code: (u8, u8)) -> Failure {
    Sense::illegal_request(additional(code)).into()
}

impl OsdUnit {
    /// Whether `task` may run, before anything of it does: capability, integrity check value,
    /// nonce. The CDB is as it came in `task.command.cdb.bytes()`, a CDB continuation in
    /// `task.continuation`.
    pub(super) async fn authorize(&self, task: &mut Task<'_>) -> Result<(), Failure> {
        let functions = function::COMMAND_CAPABILITY | function::SET_CAPABILITY | function::GET_CAPABILITY;
        let sets_keys = task.cdb.command.sets_keys();
        let said = task.cdb.capability.security_method;
        if said == 0 && !sets_keys && !self.security.demanded.load(Ordering::Relaxed) {
            task.progress.done(functions);
            return Ok(());
        }
        let method = Method::from_code(said).ok_or_else(|| capability_field(2))?;
        if method < self.demanded_of(task)? {
            return Err(capability_field(2));
        }
        if method != Method::NoSec {
            task.progress.begin(function::COMMAND_CAPABILITY);
            let proof = self.prove(task, method)?;
            task.current.response_icv = proof.response_of_good();
            task.proof = Some(proof.clone());
            if method >= Method::CmdRsp {
                self.take_nonce(task, &proof)?;
            }
            if method == Method::AllData {
                self.open_data(task, &proof).await?;
                self.still_permitted(task)?;
            } else {
                self.check_capability(task)?;
            }
        }
        task.progress.done(functions);
        Ok(())
    }

    /// Whether `task` may still do what [`Self::authorize`] found that it may: to be asked whenever
    /// it has waited, for its initiator most of all, which may take as long as it likes. Meanwhile
    /// an object or a partition may have come to be where none was, and methods, keys, tags and
    /// times may be others.
    pub(super) fn still_permitted(&self, task: &mut Task<'_>) -> Result<(), Failure> {
        let sets_keys = task.cdb.command.sets_keys();
        if task.proof.is_none() && !sets_keys && !self.security.demanded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let proved = task.proof.as_ref().map(|proof| (proof.method, proof.signer));
        if proved.map_or(Method::NoSec, |(method, _)| method) < self.demanded_of(task)? {
            return Err(capability_field(2));
        }
        let Some((_, (name, mark))) = proved else { return Ok(()) };
        if self.key(name)?.is_none_or(|kept| kept.mark() != mark) {
            return Err(Failure::cdb_bit(CAPABILITY + 1, 7));
        }
        self.check_frozen(name)?;
        self.check_capability(task)
    }

    /// Whether what `task` proved is what `partition` demands, though its own object is elsewhere.
    pub(super) fn shows(&self, task: &Task<'_>, partition: u64) -> Result<bool, Failure> {
        if !self.security.demanded.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let proved = task.proof.as_ref().map_or(Method::NoSec, |proof| proof.method);
        Ok(proved >= self.default_method(partition)?)
    }

    /// Whether what `task` proved is what every partition of the unit demands: it is about all that
    /// there is.
    pub(super) async fn permitted_everywhere(&self, task: &mut Task<'_>) -> Result<(), Failure> {
        let mut walk = Walk::new(List::Partitions, 0);
        let mut ids = Vec::new();
        while self.security.demanded.load(Ordering::Relaxed) {
            walk.next(&*self.store, BATCH, &mut ids)?;
            for &partition in &ids {
                if !self.shows(task, partition)? {
                    return Err(capability_field(2));
                }
            }
            if ids.is_empty() {
                break;
            }
            task.transfer.pause().await?;
        }
        Ok(())
    }

    /// The least method that a command needs: that of every partition that it touches.
    fn demanded_of(&self, task: &Task<'_>) -> Result<Method, Failure> {
        let command = &task.cdb.command;
        let mut touched: SmallVec<[u64; 4]> = SmallVec::new();
        match *command {
            // An object that does not exist yet belongs to the root.
            Command::CreatePartition { .. } => touched.push(0),
            Command::CreateClone { source, .. } | Command::CreateSnapshot { source, .. } => {
                touched.extend([0, source]);
            }
            Command::RefreshSnapshotOrClone { partition } => {
                touched.extend([0, partition]);
                match self.store.partition(partition) {
                    Ok(info) => touched.extend(info.origin.map(|origin| origin.source)),
                    Err(crate::store::Error::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Command::RestorePartition { partition, snapshot } => touched.extend([0, partition, snapshot]),
            Command::ReadMapsAndCompare { id, other, .. } if other != id.partition => {
                touched.extend([0, id.partition, other]);
            }
            _ => touched.push(command.id().partition),
        }
        touched.extend(copy_sources(task).map(|source| source.id.partition));
        let mut demanded = Method::NoSec;
        for partition in touched {
            demanded = demanded.max(self.default_method(partition)?);
        }
        if command.sets_keys() && self.key(Name::Master)?.is_some() {
            // Once there is a master key, a command that sets keys needs CMDRSP, whatever the unit
            // demands of others.
            return Ok(demanded.max(Method::CmdRsp));
        }
        Ok(demanded)
    }

    /// The default security method of a partition, of 0 the root's. One that does not exist has the
    /// root's or that of new ones, whichever is stronger.
    fn default_method(&self, partition: u64) -> Result<Method, Failure> {
        let method = |id: Id, attribute: AttributeId| -> Result<Method, Failure> {
            let code = self.stored_number(id, attribute)?.unwrap_or(0);
            // The stored method was checked when set; any other value demands the strongest.
            Ok(u8::try_from(code).ok().and_then(Method::from_code).unwrap_or(Method::AllData))
        };
        let root = || method(Id::ROOT, root_security::DEFAULT_METHOD);
        if partition == 0 {
            return root();
        }
        match self.store.partition(partition) {
            Ok(_) => method(Id::partition(partition), partition_security::DEFAULT_METHOD),
            Err(crate::store::Error::NotFound(_)) => {
                Ok(root()?.max(method(Id::ROOT, root_security::PARTITION_DEFAULT_METHOD)?))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Finds the capability's key, and whether the client holds it.
    fn prove(&self, task: &Task<'_>, method: Method) -> Result<Proof, Failure> {
        let (cdb, bytes) = (task.cdb, task.command.cdb.bytes());
        let form = cdb.form;
        let format = match form.version() {
            Version::Osd1 => capability::format::OSD1,
            Version::Osd2 => capability::format::OSD2,
        };
        if cdb.capability.format != format {
            return Err(capability_field(0));
        }
        let algorithm = Algorithm::from_code(cdb.capability.integrity_algorithm)
            .filter(|algorithm| algorithm.len() <= form.icv_len())
            .ok_or_else(|| Failure::cdb_bit(CAPABILITY + 1, 3))?;
        let version = cdb.capability.key_version;
        let name = match signer(&cdb.command) {
            Signer::Master => Name::Master,
            Signer::Root => Name::Root,
            Signer::Partition(partition) => Name::Partition(partition),
            Signer::Working => Name::Working(cdb.capability.partition, version),
        };
        let Some(kept) = self.key(name)? else {
            return Err(Failure::cdb_bit(CAPABILITY + 1, 7));
        };
        let (at, len) = form.capability();
        let capability = bytes.get(at..at + len).unwrap_or_default();
        let system_id = &self.options.system_id;
        let key = credential::capability_key(algorithm, &kept.pair.authentication, capability, system_id);
        let value = match method {
            Method::CapKey => {
                security::capkey_request(algorithm, &key, &self.security_token(&task.command.nexus.nexus))
            }
            _ => security::command_request(algorithm, &key, bytes, form),
        };
        if !value.is(&cdb.security.icv[..form.icv_len()]) {
            return Err(Failure::cdb(form.icv_at() as u16)); // at most 184
        }
        // Only now: strangers need not know which keys are frozen.
        self.check_frozen(name)?;
        Ok(Proof { method, signer: (name, kept.mark()), algorithm, key, nonce: cdb.security.nonce })
    }

    fn check_frozen(&self, name: Name) -> Result<(), Failure> {
        let Name::Working(partition @ 1.., version) = name else { return Ok(()) };
        let frozen = self.stored_number(Id::partition(partition), partition_security::FROZEN_KEYS)?;
        if frozen.unwrap_or(0) >> version & 1 != 0 {
            return Err(refused(code::WORKING_KEY_FROZEN));
        }
        Ok(())
    }

    /// Takes the request's nonce, and checks what the integrity check value of a CDB continuation
    /// covers.
    fn take_nonce(&self, task: &Task<'_>, proof: &Proof) -> Result<(), Failure> {
        if !task.continuation.is_empty() {
            let value = security::continuation(proof.algorithm, &proof.key, &proof.nonce, &task.continuation);
            let field = task.continuation.get(8..40).unwrap_or_default();
            if !value.is(field) {
                return Err(refused(code::INVALID_DATA_OUT_ICV));
            }
        }
        let window = self.nonce_window(task.cdb.capability.partition)?;
        let mut nonces = self.security.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        nonces.take(task.cdb.capability.partition, proof.nonce, task.now, window).map_err(|error| {
            refused(match error {
                NonceError::OutOfRange => code::NONCE_TIMESTAMP_OUT_OF_RANGE,
                NonceError::NotUnique => code::NONCE_NOT_UNIQUE,
            })
        })
    }

    /// Limits of a nonce's age and lead in a partition: the partition's own, else the root's, else
    /// the default.
    fn nonce_window(&self, partition: u64) -> Result<Window, Failure> {
        let default = Window::default();
        let of = |number: AttributeId, root: AttributeId, default: u64| -> Result<u64, Failure> {
            if partition != 0 {
                // A capability for a partition that is gone is refused later.
                if let Ok(Some(limit)) = self.stored_number(Id::partition(partition), number) {
                    return Ok(limit);
                }
            }
            Ok(self.stored_number(Id::ROOT, root)?.unwrap_or(default))
        };
        Ok(Window {
            oldest: of(partition_security::OLDEST_NONCE, root_security::OLDEST_NONCE, default.oldest)?
                .min(MAX_LIMIT),
            newest: of(partition_security::NEWEST_NONCE, root_security::NEWEST_NONCE, default.newest)?
                .min(MAX_LIMIT),
        })
    }

    /// Under ALLDATA: takes all of Data-Out and verifies it, and has Data-In sealed.
    async fn open_data(&self, task: &mut Task<'_>, proof: &Proof) -> Result<(), Failure> {
        let form = task.cdb.form;
        let (in_field, out_field) = (form.nonce_at() as u16 + 12, form.nonce_at() as u16 + 16); // at most 232
        let sealer = |direction| Sealer::new(proof.algorithm, &proof.key, &proof.nonce, direction);
        if task.transfer.out_len() > 0 {
            let len = Sealer::information_len(proof.algorithm, Direction::Out) as u64;
            let at = task.cdb.security.data_out_icv.ok_or_else(|| Failure::cdb(out_field))?;
            let end = at.checked_add(len).filter(|end| *end <= task.transfer.out_len());
            // Behind all bytes that it covers, and within the limit.
            let (Some(end), true) = (end, at >= task.transfer.wanted_out && at <= MAX_SEALED) else {
                return Err(Failure::cdb(out_field));
            };
            let before = task.continuation.len() as u64;
            let mut data = task.transfer.take(before, end - before).await?;
            let information = data.clone();
            let covered = (at - before) as usize; // at most MAX_SEALED
            let mut information = information;
            information.advance(covered);
            data.truncate(covered);
            let mut sealer = sealer(Direction::Out);
            sealer.update(&task.continuation);
            data.for_each_slice(|slice| sealer.update(slice));
            let (get, set) = match &task.cdb.attributes {
                osd::cdb::AttributeParameters::List { get, set, .. } => {
                    (get.map_or(0, |region| region.len), set.map_or(0, |region| region.len))
                }
                osd::cdb::AttributeParameters::Page { set, .. } => {
                    (0, set.and_then(|set| set.value).map_or(0, |region| region.len))
                }
                osd::cdb::AttributeParameters::SetOne(_) => (0, 0),
            };
            let own = before + task.cdb.command.data_out_len();
            if !sealer.verify([own, set.into(), get.into()], &information.to_vec()) {
                return Err(refused(code::INVALID_DATA_OUT_ICV));
            }
            task.transfer.serve(before, data);
            task.transfer.wanted_out = end;
        }
        // Only a tunnelled command itself knows the data it returns.
        let tunnels =
            matches!(task.cdb.command, Command::PerformScsiCommand { .. }) && task.transfer.room() > 0;
        let wants = task.cdb.command.data_in_len() > 0 || task.cdb.retrieved().is_some() || tunnels;
        if wants {
            let at = task.cdb.security.data_in_icv.ok_or_else(|| Failure::cdb(in_field))?;
            let len = Sealer::information_len(proof.algorithm, Direction::In) as u64;
            let own = task.cdb.command.data_in_len();
            let data_end = task.cdb.retrieved().map_or(own, |region| region.end().max(own));
            let fits = at.checked_add(len).is_some_and(|end| end <= task.transfer.room());
            if at < data_end || !fits {
                return Err(Failure::cdb(in_field));
            }
            let retrieved = task.cdb.retrieved().map(|region| region.offset);
            task.transfer.seal(sealer(Direction::In), at, retrieved);
        }
        Ok(())
    }

    /// The security token of VPD page B1h for a nexus: no other nexus has it, and it differs after
    /// a start.
    pub(super) fn security_token(&self, nexus: &Nexus) -> Vec<u8> {
        let parts: [&[u8]; 3] = [b"security token", &nexus.id.0.to_be_bytes(), nexus.initiator.as_bytes()];
        security::mac(Algorithm::HmacSha256, &self.security.boot, &parts).bytes().to_vec()
    }

    /// Adds what security keeps of an object of type `of_type` that is created.
    pub(super) fn security_creation(
        &self,
        id: Id,
        of_type: ObjectType,
        change: &mut Change,
    ) -> Result<(), Failure> {
        let partition = Id::partition(id.partition);
        let object_tag = partition_security::OBJECT_POLICY_TAG;
        let (from, inherited, to) = match of_type {
            ObjectType::Root | ObjectType::Partition => {
                (Id::ROOT, root_security::PARTITION_DEFAULT_METHOD, partition_security::DEFAULT_METHOD)
            }
            ObjectType::Collection => (partition, object_tag, collection_security::POLICY_TAG),
            ObjectType::User => (partition, object_tag, user_security::POLICY_TAG),
        };
        let mut value = Vec::new();
        if self.store.attribute(from, inherited.page.0, inherited.number, &mut value)? {
            change.set_attribute(id, to.page.0, to.number, &value);
        }
        Ok(())
    }

    /// Everything was removed, the root's attributes too.
    pub(super) fn security_formatted(&self) -> Result<(), Failure> {
        *self.security.exchange.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}

/// Whether a page is one of the Policy/Security pages.
fn is_security(page: Page) -> bool {
    ObjectType::ALL.into_iter().any(|of| page == Page::of(of, 5))
}
