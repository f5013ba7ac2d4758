//! A security manager, its clients, and attackers: each attack is refused, with the sense for its
//! reason.

use osd::attributes::numbers::{
    attributes_access, collection_security, current_command, partition_security, root_security,
    user_information, user_security,
};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{Cdb, KeyToSet, SetKey, SetMasterKey};
use osd::security::credential::Credential;
use osd::security::{Algorithm, Direction, Key, KeyPair, Method, Sealer, dh, nonce};
use osd::sense::code;
use osd::{Action, Capability, Command as Osd, Form, Id, ObjectType, Permissions, Version, security};
use scsi::SenseKey;

use super::super::tests::{Ask, CAPACITY, Client, ID, O, P, Ran, options, range};
use super::MAX_SEALED;

/// Nonces of all tests differ by this.
static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

pub(super) fn fresh_nonce(client: &Client) -> [u8; 12] {
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_be_bytes();
    let now = client.clock.0.load(std::sync::atomic::Ordering::Relaxed);
    nonce::nonce(now, *count.last_chunk().unwrap())
}

pub(super) struct Manager {
    pub algorithm: Algorithm,
    master: KeyPair,
    root: KeyPair,
    /// Of partition zero, and of [`P`].
    pub partitions: [KeyPair; 2],
    /// Working key 1 of both.
    pub working: [KeyPair; 2],
}

pub(super) const SEED: [u8; 20] = [0x31; 20];

impl Manager {
    /// Agrees on a master key with a unit that has none, makes all keys below, and has the
    /// partition demand `method`.
    pub fn new(client: &Client, method: Method) -> Self {
        // Nothing that is as old as the unit is new.
        client.tick(10);
        let algorithm = Algorithm::of_form(client.form);
        let master = agree(client, None, algorithm).unwrap();
        let root = master.derive(algorithm, &SEED);
        let partition = |n: u8| root.derive(algorithm, &[n; 20]);
        let partitions = [partition(1), partition(2)];
        let working = [partitions[0].derive(algorithm, &SEED), partitions[1].derive(algorithm, &SEED)];
        let this = Self { algorithm, master, root, partitions, working };
        this.set_key(client, KeyToSet::Root, 0, 0, SEED).good();
        this.set_key(client, KeyToSet::Partition, 0, 0, [1; 20]).good();
        this.set_key(client, KeyToSet::Partition, P, 0, [2; 20]).good();
        this.set_key(client, KeyToSet::Working, 0, 1, SEED).good();
        this.set_key(client, KeyToSet::Working, P, 1, SEED).good();
        client.set(Id::partition(P), partition_security::DEFAULT_METHOD, &[method as u8]).good();
        this
    }

    /// A capability of everything on an object, to be narrowed.
    pub fn capability(&self, client: &Client, kind: ObjectType, id: Id, method: Method) -> Capability {
        let mut capability = Capability::all(client.form.version(), kind, id);
        capability.integrity_algorithm = self.algorithm as u8;
        capability.security_method = method as u8;
        capability.key_version = 1;
        capability
    }

    pub fn sign(&self, client: &Client, capability: Capability, key: &KeyPair) -> Credential {
        let version = client.form.version();
        let system = client.unit.options().system_id;
        Credential::sign(version, capability, system, &key.authentication).unwrap()
    }

    /// A credential with everything on the user object [`ID`], as `narrow` leaves it.
    pub fn grant(&self, client: &Client, method: Method, narrow: impl FnOnce(&mut Capability)) -> Credential {
        let mut capability = self.capability(client, ObjectType::User, ID, method);
        narrow(&mut capability);
        self.sign(client, capability, &self.working[1])
    }

    pub fn set_key(
        &self,
        client: &Client,
        key: KeyToSet,
        partition: u64,
        version: u8,
        seed: [u8; 20],
    ) -> Ran {
        let (signer, id) = match key {
            KeyToSet::Root => (&self.master, Id::ROOT),
            KeyToSet::Partition => (&self.root, Id::partition(partition)),
            KeyToSet::Working => (&self.partitions[usize::from(partition != 0)], Id::partition(partition)),
        };
        let kind = if id.is_root() { ObjectType::Root } else { ObjectType::Partition };
        let credential = self.sign(client, self.capability(client, kind, id, Method::CmdRsp), signer);
        let set = SetKey { key, partition, version, key_id: *b"testkey", seed };
        sealed(client, client.ask(Osd::SetKey(set)), &credential)
    }
}

/// SET MASTER KEY in both steps, under NOSEC or with the old master key.
fn agree(client: &Client, old: Option<&Manager>, algorithm: Algorithm) -> Result<KeyPair, Ran> {
    let exponent = dh::Exponent::new([0x42; 32]);
    let step = |step: u8, data: &[u8], allocation: u32| {
        let set = SetMasterKey {
            step,
            group: dh::GROUP,
            key_id: *b"masterk",
            parameter_len: data.len() as u32,
            allocation,
        };
        let ask = client.ask(Osd::SetMasterKey(set)).data(data);
        match old {
            None => ask.send(),
            Some(manager) => {
                let capability = manager.capability(client, ObjectType::Root, Id::ROOT, Method::CmdRsp);
                sealed(client, ask, &manager.sign(client, capability, &manager.master))
            }
        }
    };
    let first = step(0, &dh::exchange(&exponent.public()), dh::EXCHANGE_LEN as u32);
    if first.outcome.sense.is_some() {
        return Err(first);
    }
    let shared = exponent.shared(&dh::parse_exchange(&first.data).unwrap()).unwrap();
    let new = dh::master(algorithm, old.map(|manager| &manager.master), &shared);
    let proof = dh::confirmation(algorithm, &new.authentication, b"masterk");
    // A client without the key cannot have it changed, and ends the exchange.
    step(1, proof.bytes(), 0).good();
    Ok(new)
}

/// A command with its capability and integrity check values, from a client that holds `credential`.
pub(super) struct Sealed {
    pub cdb: Vec<u8>,
    pub out: Vec<u8>,
    form: Form,
    pub nonce: [u8; 12],
    pub data_in_icv: Option<u64>,
}

pub(super) fn seal_with(client: &Client, ask: Ask<'_>, credential: &Credential, nonce: [u8; 12]) -> Sealed {
    let algorithm = credential.algorithm().unwrap();
    let (bytes, mut out, _) = ask.build();
    let mut cdb = Cdb::decode(&bytes).unwrap();
    let (form, version) = (cdb.form, cdb.form.version());
    cdb.capability = credential.capability;
    cdb.security.nonce = nonce;
    let method = Method::from_code(cdb.capability.security_method).unwrap();
    if cdb.continuation > 0 {
        let own = &mut out[..cdb.continuation as usize];
        let value = security::continuation(algorithm, &credential.key, &nonce, own);
        own[8..40].copy_from_slice(&value.field());
    }
    if method == Method::AllData {
        if !out.is_empty() {
            let at = osd::offset::round_up(out.len() as u64, version).unwrap();
            out.resize(at as usize, 0);
            let mut sealer = Sealer::new(algorithm, &credential.key, &nonce, Direction::Out);
            sealer.update(&out);
            let own = u64::from(cdb.continuation) + cdb.command.data_out_len();
            let (get, set) = match &cdb.attributes {
                osd::cdb::AttributeParameters::List { get, set, .. } => {
                    (get.map_or(0, |region| region.len), set.map_or(0, |region| region.len))
                }
                _ => (0, 0),
            };
            out.extend(sealer.finish([own, set.into(), get.into()]));
            cdb.security.data_out_icv = Some(at);
        }
        let retrieved = cdb.attributes.retrieved().map_or(0, |region| region.end());
        // As much as the tests' tunnelled commands put.
        let tunnelled = if matches!(cdb.command, Osd::PerformScsiCommand { .. }) { 256 } else { 0 };
        let end = cdb.command.data_in_len().max(retrieved).max(tunnelled);
        cdb.security.data_in_icv = Some(osd::offset::round_up(end, version).unwrap());
    }
    let data_in_icv = cdb.security.data_in_icv;
    let mut bytes = cdb.encode().unwrap().to_vec();
    let value = match method {
        Method::NoSec => return Sealed { cdb: bytes, out, form, nonce, data_in_icv },
        Method::CapKey => {
            let page = client.raw(&[0x12, 1, 0xB1, 0x01, 0, 0], &[]).good().data;
            let token = osd::data::parse_security_token(&page).unwrap();
            security::capkey_request(algorithm, &credential.key, token)
        }
        _ => security::command_request(algorithm, &credential.key, &bytes, form),
    };
    let at = form.icv_at();
    bytes[at..at + form.icv_len()].copy_from_slice(&value.field()[..form.icv_len()]);
    Sealed { cdb: bytes, out, form, nonce, data_in_icv }
}

pub(super) fn seal(client: &Client, ask: Ask<'_>, credential: &Credential) -> Sealed {
    seal_with(client, ask, credential, fresh_nonce(client))
}

pub(super) fn sealed(client: &Client, ask: Ask<'_>, credential: &Credential) -> Ran {
    let sealed = seal(client, ask, credential);
    client.raw(&sealed.cdb, &sealed.out)
}

pub(super) fn set(
    client: &Client,
    id: Id,
    attribute: AttributeId,
    value: &[u8],
    credential: &Credential,
) -> Ran {
    sealed(client, client.ask(Osd::SetAttributes(id)).set(attribute, value), credential)
}

pub(super) fn read(client: &Client) -> Ask<'_> {
    client.ask(Osd::Read(ID, range(0, 8)))
}

pub(super) fn protected(method: Method) -> (Client, Manager) {
    let client = Client::ready();
    client.write(0, b"contents").good();
    let manager = Manager::new(&client, method);
    (client, manager)
}

#[test]
fn who_has_a_credential_is_served_in_every_form_of_cdb_and_by_every_method() {
    for client in Client::each_form() {
        client.write(0, b"contents").good();
        let manager = Manager::new(&client, Method::CapKey);
        for method in [Method::CapKey, Method::CmdRsp, Method::AllData] {
            let grant = manager.grant(&client, method, |_| {});
            let ran = sealed(&client, read(&client), &grant).good();
            assert_eq!(&ran.data[..8], b"contents", "{method:?}");
            sealed(&client, client.ask(Osd::Write(ID, range(0, 8))).data(b"contents"), &grant).good();
            set(&client, ID, user_information::NAME, b"name", &grant).good();
        }
    }
}

#[test]
fn without_a_credential_and_with_a_weaker_method_nothing_is_served() {
    let (client, manager) = protected(Method::CmdRsp);
    read(&client).send().bad_field(82);
    let weak = manager.grant(&client, Method::CapKey, |_| {});
    sealed(&client, read(&client), &weak).bad_field(82);
    sealed(&client, read(&client), &manager.grant(&client, Method::CmdRsp, |_| {})).good();
    // Other partitions go on as before.
    client.ask(Osd::List(osd::cdb::List::new(0, 64))).send().good();
}

#[test]
fn a_forged_capability_or_command_is_refused() {
    let (client, manager) = protected(Method::CmdRsp);
    let narrow = manager.grant(&client, Method::CmdRsp, |c| c.permissions = Permissions::READ);
    // More permissions than were signed, sealed with the key that was.
    let mut forged = narrow.clone();
    forged.capability.permissions = Permissions::ALL;
    sealed(&client, read(&client), &forged).bad_field(184);
    // Any byte of the CDB altered on its way, the value itself included.
    let good = seal(&client, read(&client), &narrow);
    for at in (10..good.cdb.len()).filter(|at| !(52..80).contains(at)) {
        let mut altered = good.cdb.clone();
        altered[at] ^= 1;
        let ran = client.raw(&altered, &good.out);
        assert_eq!(ran.sense().key, SenseKey::IllegalRequest, "byte {at}");
    }
    client.raw(&good.cdb, &good.out).good();
    // An unknown key, and another unit's credential.
    let mut stranger = narrow.clone();
    stranger.key = Key::new(&[1; 32]).unwrap();
    sealed(&client, read(&client), &stranger).bad_field(184);
    let elsewhere =
        Credential::sign(Version::Osd2, narrow.capability, [9; 20], &manager.working[1].authentication)
            .unwrap();
    sealed(&client, read(&client), &elsewhere).bad_field(184);
}

#[test]
fn a_replayed_request_is_refused_and_so_is_one_out_of_its_time() {
    let (client, manager) = protected(Method::CmdRsp);
    let grant = manager.grant(&client, Method::CmdRsp, |_| {});
    client.tick(10);
    let once = seal(&client, read(&client), &grant);
    client.raw(&once.cdb, &once.out).good();
    let replayed = client.raw(&once.cdb, &once.out);
    replayed.fails(SenseKey::IllegalRequest, code::NONCE_NOT_UNIQUE);
    client.tick(61_000);
    client.raw(&once.cdb, &once.out).fails(SenseKey::IllegalRequest, code::NONCE_TIMESTAMP_OUT_OF_RANGE);
    let now = client.clock.0.load(std::sync::atomic::Ordering::Relaxed);
    let early = seal_with(&client, read(&client), &grant, nonce::nonce(now + 10_001, [1; 6]));
    client.raw(&early.cdb, &early.out).fails(SenseKey::IllegalRequest, code::NONCE_TIMESTAMP_OUT_OF_RANGE);
    // The partition may say how far clocks may be apart.
    let partition = manager.capability(&client, ObjectType::Partition, Id::partition(P), Method::CmdRsp);
    let partition = manager.sign(&client, partition, &manager.working[1]);
    set(&client, Id::partition(P), partition_security::NEWEST_NONCE, &[0, 0, 0, 1, 0, 0], &partition).good();
    client.raw(&early.cdb, &early.out).good();
}

#[test]
fn what_was_before_a_start_is_not_taken_after_it() {
    let client = Client::ready();
    let manager = Manager::new(&client, Method::CmdRsp);
    client.tick(10);
    let before = seal(&client, read(&client), &manager.grant(&client, Method::CmdRsp, |_| {}));
    client.tick(1000);
    let again = super::super::OsdUnit::new(client.unit.store().clone(), options(&client.clock)).unwrap();
    let after = Client::to(&again, 1, client.clock.clone());
    after.raw(&before.cdb, &before.out).fails(SenseKey::IllegalRequest, code::NONCE_TIMESTAMP_OUT_OF_RANGE);
    // Keys and demands are kept; tokens and the epoch are not.
    read(&after).send().bad_field(82);
    after.tick(10);
    let grant = manager.grant(&client, Method::CmdRsp, |_| {});
    sealed(&after, client_create(&after), &whole_partition(&manager, &after)).good();
    let token = |client: &Client| client.raw(&[0x12, 1, 0xB1, 1, 0, 0], &[]).good().data;
    assert_ne!(token(&client), token(&after));
    let epoch = client.get(Id::ROOT, root_security::BOOT_EPOCH).good().number();
    assert_ne!(after.get(Id::ROOT, root_security::BOOT_EPOCH).good().number(), epoch);
    let old = manager.grant(&client, Method::CmdRsp, |c| c.boot_epoch = epoch as u16);
    sealed(&after, read(&after), &old).bad_field(144);
    sealed(&after, read(&after), &grant);
}

fn client_create(client: &Client) -> Ask<'_> {
    client.ask(Osd::Create { partition: P, requested: 0, count: 1 })
}

/// Everything on every user object of the partition.
pub(super) fn whole_partition(manager: &Manager, client: &Client) -> Credential {
    manager.grant(client, Method::CmdRsp, |c| c.object = 0)
}

#[test]
fn a_capability_ends_when_its_time_its_object_its_tag_its_key_or_the_units_run_does() {
    let (client, manager) = protected(Method::CmdRsp);
    let all = manager.grant(&client, Method::CmdRsp, |_| {});
    let of = |narrow: fn(&mut Capability, u64), value: u64| {
        manager.grant(&client, Method::CmdRsp, |c| narrow(c, value))
    };
    let works = |grant: &Credential| sealed(&client, read(&client), grant).good();
    // Expiry.
    let now = client.clock.0.load(std::sync::atomic::Ordering::Relaxed);
    let brief = of(|c, v| c.expires = v, now + 5);
    works(&brief);
    client.tick(6);
    sealed(&client, read(&client), &brief).bad_field(84);
    // Boot epoch.
    let epoch = client.get(Id::ROOT, root_security::BOOT_EPOCH).good().number();
    works(&of(|c, v| c.boot_epoch = v as u16, epoch));
    sealed(&client, read(&client), &of(|c, v| c.boot_epoch = v as u16, epoch + 1)).bad_field(144);
    // The policy access tag.
    let tagged = of(|c, v| c.policy_tag = v as u32, 7);
    let tag = |value: u8| {
        set(&client, ID, user_security::POLICY_TAG, &[0, 0, 0, value], &all).good();
    };
    sealed(&client, read(&client), &tagged).bad_field(140);
    tag(7);
    works(&tagged);
    tag(8);
    sealed(&client, read(&client), &tagged).bad_field(140);
    // The object's creation.
    let created = AttributeId::new(Page(3), 1);
    let get = client.ask(Osd::GetAttributes(ID)).get(&[created]);
    let list = sealed(&client, get, &all).good().data;
    let created = list[24..30].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let of_this = of(|c, v| c.created = v, created);
    works(&of_this);
    client.tick(1);
    sealed(&client, client.ask(Osd::Remove(ID)), &all).good();
    sealed(&client, client.ask(Osd::Create { partition: P, requested: O, count: 1 }), &all).good();
    sealed(&client, read(&client), &of_this).bad_field(122);
    // The working key: frozen, then changed.
    let partition = manager.capability(&client, ObjectType::Partition, Id::partition(P), Method::CmdRsp);
    let partition = manager.sign(&client, partition, &manager.working[1]);
    manager.set_key(&client, KeyToSet::Working, P, 2, [9; 20]).good();
    set(&client, Id::partition(P), partition_security::FROZEN_KEYS, &[0, 2], &partition).good();
    sealed(&client, read(&client), &all).fails(SenseKey::IllegalRequest, code::WORKING_KEY_FROZEN);
    manager.set_key(&client, KeyToSet::Working, P, 1, [9; 20]).good();
    sealed(&client, read(&client), &all).bad_field(184);
}

#[test]
fn a_collection_has_a_policy_access_tag_of_its_own() {
    let (client, manager) = protected(Method::CmdRsp);
    let id = Id::new(P, O + 5);
    let tagged = |tag| {
        let mut capability = manager.capability(&client, ObjectType::Collection, id, Method::CmdRsp);
        capability.policy_tag = tag;
        manager.sign(&client, capability, &manager.working[1])
    };
    let create = Osd::CreateCollection { partition: P, requested: id.object };
    sealed(&client, client.ask(create), &tagged(0)).good();
    let list = || client.ask(Osd::ListCollection(osd::cdb::ListCollection::new(id, 100)));
    sealed(&client, list(), &tagged(9)).bad_field(140);
    set(&client, id, collection_security::POLICY_TAG, &[0, 0, 0, 9], &tagged(0)).good();
    sealed(&client, list(), &tagged(9)).good();
    sealed(&client, list(), &tagged(8)).bad_field(140);
    // Its members are no part of it.
    let of_object = manager.grant(&client, Method::CmdRsp, |capability| capability.policy_tag = 9);
    sealed(&client, read(&client), &of_object).bad_field(140);
}

#[test]
fn a_key_that_is_replaced_takes_all_keys_below_it_along() {
    let (client, manager) = protected(Method::CmdRsp);
    let all = manager.grant(&client, Method::CmdRsp, |_| {});
    sealed(
        &client,
        client.ask(Osd::Flush { id: ID, scope: osd::cdb::FlushScope::Contents, range: range(0, 0) }),
        &all,
    )
    .good();
    // The partition's key: its working keys are gone, partition zero's are not.
    manager.set_key(&client, KeyToSet::Partition, P, 0, [2; 20]).good();
    manager.set_key(&client, KeyToSet::Working, P, 1, SEED).good();
    sealed(&client, read(&client), &all).good();
    manager.set_key(&client, KeyToSet::Partition, P, 0, [7; 20]).good();
    sealed(&client, read(&client), &all).bad_field(81);
    manager.set_key(&client, KeyToSet::Working, P, 1, SEED).bad_field(184);
    // The master key: everything is.
    let next = agree(&client, Some(&manager), manager.algorithm).unwrap();
    assert_ne!(next, manager.master);
    manager.set_key(&client, KeyToSet::Partition, P, 0, [2; 20]).bad_field(81);
    manager.set_key(&client, KeyToSet::Root, 0, 0, SEED).bad_field(184);
}

#[test]
fn a_unit_without_a_master_key_computes_few_exchanges_for_everybody() {
    let client = Client::empty();
    let other = Client::to(&client.unit, 2, client.clock.clone());
    let set = SetMasterKey {
        step: 0,
        group: dh::GROUP,
        key_id: *b"masterk",
        parameter_len: dh::EXCHANGE_LEN as u32,
        allocation: dh::EXCHANGE_LEN as u32,
    };
    let public = dh::exchange(&dh::Exponent::new([1; 32]).public());
    let asked = |client: &Client| client.ask(Osd::SetMasterKey(set)).data(&public).send();
    let computed = |client: &Client| (0..20).take_while(|_| asked(client).outcome.sense.is_none()).count();
    assert_eq!(computed(&client), 8);
    asked(&other).fails(SenseKey::AbortedCommand, (0x55, 0x03));
    client.tick(250);
    assert_eq!((computed(&other), computed(&client)), (1, 0));
    // A clock that was set back keeps nobody out for long.
    client.clock.0.store(500_000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(computed(&client), 8);
    client.tick(10_000);
    assert!(agree(&client, None, Algorithm::of_form(client.form)).is_ok());
}

#[test]
fn keys_are_changed_by_nobody_but_their_manager() {
    let (client, manager) = protected(Method::NoSec);
    // Nothing demands a method, yet: neither the master key nor one below is changed without the
    // key above.
    let refused = agree(&client, None, manager.algorithm).unwrap_err();
    refused.bad_field(82);
    let set = SetKey { key: KeyToSet::Root, partition: 0, version: 0, key_id: *b"mine---", seed: SEED };
    client.ask(Osd::SetKey(set)).send().bad_field(82);
    let working = manager.capability(&client, ObjectType::Root, Id::ROOT, Method::CmdRsp);
    let working = manager.sign(&client, working, &manager.working[0]);
    sealed(&client, client.ask(Osd::SetKey(set)), &working).bad_field(184);
    // A second step without a first, of another key, and with a proof of another key.
    let step = |step: u8, key_id: [u8; 7], data: &[u8]| {
        let set = SetMasterKey {
            step,
            group: dh::GROUP,
            key_id,
            parameter_len: data.len() as u32,
            allocation: if step == 0 { dh::EXCHANGE_LEN as u32 } else { 0 },
        };
        let capability = manager.capability(&client, ObjectType::Root, Id::ROOT, Method::CmdRsp);
        let credential = manager.sign(&client, capability, &manager.master);
        sealed(&client, client.ask(Osd::SetMasterKey(set)).data(data), &credential)
    };
    step(1, *b"another", &[0; 32]).bad_field(25);
    let public = dh::exchange(&dh::Exponent::new([1; 32]).public());
    step(0, *b"another", &public).good();
    step(1, *b"somekey", &[0; 32]).bad_field(25);
    step(1, *b"another", &[0; 32]).fails(SenseKey::IllegalRequest, code::INVALID_DATA_OUT_ICV);
    step(1, *b"another", &[0; 32]).bad_field(25);
    let mut weak = public.clone();
    weak[4..].fill(0);
    step(0, *b"another", &weak).bad_parameter(4);
    // No client sees a key, or sets one.
    let secret = AttributeId::new(Page(super::keyring::PAGE), 1);
    assert!(client.get(Id::ROOT, secret).good().value().is_empty());
    assert!(client.set(Id::ROOT, secret, &[0; 90]).outcome.sense.is_some());
    let every = AttributeId::new(Page::ALL, AttributeId::ALL);
    let found = client.get(Id::ROOT, every).good().values();
    assert!(found.iter().all(|(attribute, _)| attribute.page.0 < 0xC000_0000), "{found:?}");
    assert_eq!(client.get(Id::ROOT, root_security::MASTER_KEY_ID).good().value(), b"masterk");
}

#[test]
fn every_command_needs_each_permission_that_the_table_gives_it_and_its_own_object() {
    let (client, manager) = protected(Method::CmdRsp);
    for &action in Action::ALL {
        if matches!(action, Action::SetKey | Action::SetMasterKey) {
            continue;
        }
        // The capability is checked before the CDB's other fields.
        let mut bytes = Cdb::new(Osd::Read(ID, range(0, 0))).encode().unwrap().to_vec();
        bytes[8..10].copy_from_slice(&action.code(Version::Osd2).unwrap().to_be_bytes());
        let command = Cdb::decode(&bytes).unwrap().command;
        let needs = command.needs();
        let kind = needs.object_type.unwrap_or(ObjectType::User);
        let key = &manager.working[usize::from(needs.id.partition != 0)];
        let sent = |capability: Capability| {
            let mut cdb = Cdb::new(command);
            let credential = manager.sign(&client, capability, key);
            cdb.capability = credential.capability;
            cdb.security.nonce = fresh_nonce(&client);
            let mut bytes = cdb.encode().unwrap().to_vec();
            let value = security::command_request(manager.algorithm, &credential.key, &bytes, Form::Osd2);
            bytes[184..216].copy_from_slice(&value.field());
            client.raw(&bytes, &[])
        };
        let mut whole = manager.capability(&client, kind, needs.id, Method::CmdRsp);
        // A copy's source is another object: it takes a capability for all of the partition.
        if action == Action::CopyUserObjects {
            sent(whole).bad_field(160);
            whole.object = 0;
        }
        let mut bits = 0;
        for (name, permission) in Permissions::NAMES {
            if needs.permissions.contains(permission) {
                bits += 1;
                let mut without = whole;
                without.permissions.0 &= !permission.0;
                let ran = sent(without);
                assert!(ran.outcome.sense.is_some(), "{action} without {name}");
                ran.bad_field(129);
            }
        }
        assert!(bits > 0, "{action} needs no permission");
        let mut other = whole;
        other.object_type = if kind == ObjectType::User { 0x40 } else { 0x80 };
        sent(other).bad_field(128);
        if kind == ObjectType::User && whole.object != 0 {
            let mut other = whole;
            other.object += 1;
            sent(other).bad_field(160);
        }
    }
}

#[test]
fn a_capability_is_for_its_object_its_range_and_its_attributes() {
    let (client, manager) = protected(Method::CmdRsp);
    let other = manager.grant(&client, Method::CmdRsp, |c| c.object = O + 1);
    sealed(&client, read(&client), &other).bad_field(160);
    let every = manager.grant(&client, Method::CmdRsp, |c| c.object = 0);
    sealed(&client, read(&client), &every).good();
    // Another partition's capability, signed by that partition's key.
    let mut elsewhere = manager.capability(&client, ObjectType::User, ID, Method::CmdRsp);
    elsewhere.partition = 0;
    let elsewhere = manager.sign(&client, elsewhere, &manager.working[0]);
    sealed(&client, read(&client), &elsewhere).bad_field(152);
    let part = manager.grant(&client, Method::CmdRsp, |c| (c.range_start, c.range_len) = (0, 4));
    sealed(&client, client.ask(Osd::Read(ID, range(0, 4))), &part).good();
    sealed(&client, client.ask(Osd::Read(ID, range(0, 5))), &part).bad_field(168);
    sealed(&client, client.ask(Osd::Append { id: ID, len: 0 }), &part).bad_field(168);
    // Security attributes are not set with SET_ATTR alone.
    let plain = manager.grant(&client, Method::CmdRsp, |c| c.permissions = Permissions::SET_ATTR);
    let name = || client.ask(Osd::SetAttributes(ID)).set(user_information::NAME, b"name");
    sealed(&client, name(), &plain).good();
    set(&client, ID, user_security::POLICY_TAG, &[0, 0, 0, 1], &plain).bad_field(129);
    // A list of the attributes that may be used.
    let partition = manager.capability(&client, ObjectType::Partition, Id::partition(P), Method::CmdRsp);
    let partition = manager.sign(&client, partition, &manager.working[1]);
    let list = AttributeId::new(attributes_access::PAGE, 5);
    let value = [user_information::LOGICAL_LENGTH.page.0.to_be_bytes(), 0x82u32.to_be_bytes()].concat();
    set(&client, Id::partition(P), list, &value, &partition).good();
    let limited = manager.grant(&client, Method::CmdRsp, |c| c.allowed_attributes = 5);
    let get = |attribute| client.ask(Osd::GetAttributes(ID)).get(&[attribute]);
    sealed(&client, get(user_information::LOGICAL_LENGTH), &limited).good();
    sealed(&client, get(user_information::NAME), &limited).bad_field(136);
    sealed(&client, name(), &limited).bad_field(136);
}

#[test]
fn under_capkey_a_request_is_good_on_its_own_nexus_only() {
    let (client, manager) = protected(Method::CapKey);
    let grant = manager.grant(&client, Method::CapKey, |_| {});
    let mine = seal(&client, read(&client), &grant);
    client.raw(&mine.cdb, &mine.out).good();
    let thief = Client::to(&client.unit, 2, client.clock.clone());
    thief.raw(&mine.cdb, &mine.out).bad_field(184);
}

#[test]
fn responses_are_sealed_well_or_badly() {
    let (client, manager) = protected(Method::CmdRsp);
    let grant = manager.grant(&client, Method::CmdRsp, |c| c.permissions = Permissions::GET_ATTR);
    let get = seal(&client, client.ask(Osd::GetAttributes(ID)).get(&[current_command::RESPONSE_ICV]), &grant);
    let ran = client.raw(&get.cdb, &get.out).good();
    let value = security::response(manager.algorithm, &grant.key, &get.nonce, 0, &[]);
    assert!(value.is(&ran.data[24..56]));
    let bad = seal(&client, read(&client), &grant);
    let ran = client.raw(&bad.cdb, &bad.out);
    ran.bad_field(129);
    let sense = ran.sense().emit_descriptor();
    assert!(security::check_response(manager.algorithm, &grant.key, &bad.nonce, 2, &sense));
    assert!(!security::check_response(manager.algorithm, &grant.key, &get.nonce, 2, &sense));
    // The proof needs no permission; attributes of the object do.
    let reader = manager.grant(&client, Method::CmdRsp, |c| c.permissions = Permissions::READ);
    sealed(&client, read(&client).get(&[current_command::RESPONSE_ICV]), &reader).good();
    sealed(&client, read(&client).get(&[user_information::LOGICAL_LENGTH]), &reader).bad_field(129);
}

#[test]
fn under_alldata_altered_data_never_reaches_an_object_and_what_is_read_can_be_verified() {
    for client in Client::each_form() {
        client.write(0, b"contents").good();
        let manager = Manager::new(&client, Method::AllData);
        let grant = manager.grant(&client, Method::AllData, |_| {});
        let write = || {
            client
                .ask(Osd::Write(ID, range(0, 8)))
                .data(b"CONTENTS")
                .set(user_information::NAME, b"a name")
                .get(&[user_information::LOGICAL_LENGTH])
        };
        let good = seal(&client, write(), &grant);
        for at in 0..good.out.len() {
            let mut altered = seal(&client, write(), &grant);
            altered.out[at] ^= 1;
            let ran = client.raw(&altered.cdb, &altered.out);
            ran.fails(SenseKey::IllegalRequest, code::INVALID_DATA_OUT_ICV);
        }
        // A short buffer, and one without integrity information.
        let short = client.raw(&good.cdb, &good.out[..good.out.len() - 1]);
        assert_eq!(short.sense().key, SenseKey::IllegalRequest);
        let verify = |sealed: &Sealed, ran: &Ran, counts: [u64; 2]| {
            let at = sealed.data_in_icv.unwrap() as usize;
            let mut sealer = Sealer::new(manager.algorithm, &grant.key, &sealed.nonce, Direction::In);
            sealer.update(&ran.data[..at]);
            sealer.verify([counts[0], counts[1], 0], &ran.data[at..])
        };
        let asked = seal(&client, read(&client), &grant);
        let ran = client.raw(&asked.cdb, &asked.out).good();
        assert_eq!((&ran.data[..8], asked.form), (&b"contents"[..], client.form));
        assert!(verify(&asked, &ran, [8, 0]));
        assert!(!verify(&asked, &ran, [7, 0]));
        let ran = client.raw(&good.cdb, &good.out);
        if ran.outcome.sense.is_some() {
            // The nonce was used by the short one.
            ran.fails(SenseKey::IllegalRequest, code::NONCE_NOT_UNIQUE);
        }
        let again = seal(&client, write(), &grant);
        let ran = client.raw(&again.cdb, &again.out).good();
        let list = if client.form == Form::Osd1 { 4 + 10 + 8 } else { 8 + 16 + 8 };
        assert!(verify(&again, &ran, [0, list]));
        let asked = seal(&client, read(&client), &grant);
        assert_eq!(&client.raw(&asked.cdb, &asked.out).good().data[..8], b"CONTENTS");
    }
}

#[test]
fn under_alldata_one_command_brings_no_more_than_is_held() {
    let (client, manager) = protected(Method::AllData);
    let grant = manager.grant(&client, Method::AllData, |_| {});
    let data = vec![5; MAX_SEALED as usize];
    sealed(&client, client.ask(Osd::Write(ID, range(0, MAX_SEALED))).data(&data), &grant).good();
    let data = vec![5; MAX_SEALED as usize + 8];
    let long = client.ask(Osd::Write(ID, range(0, MAX_SEALED + 8))).data(&data);
    sealed(&client, long, &grant).bad_field(232);
    assert!(data.len() as u64 * 2 < CAPACITY);
}

#[test]
fn a_method_is_demanded_only_where_there_are_keys_and_formatting_keeps_the_roots() {
    let client = Client::ready();
    // A client cannot lock itself out.
    let refused = client.set(Id::ROOT, root_security::DEFAULT_METHOD, &[2]);
    assert!(refused.outcome.sense.is_some());
    let manager = Manager::new(&client, Method::CmdRsp);
    client.set(Id::ROOT, root_security::PARTITION_DEFAULT_METHOD, &[1]).good();
    client.set(Id::ROOT, root_security::DEFAULT_METHOD, &[2]).good();
    assert!(client.set(Id::ROOT, root_security::DEFAULT_METHOD, &[4]).outcome.sense.is_some());
    let root = manager.capability(&client, ObjectType::Root, Id::ROOT, Method::CmdRsp);
    let root = manager.sign(&client, root, &manager.working[0]);
    client.ask(Osd::Format { capacity: 0 }).send().bad_field(82);
    sealed(&client, client.ask(Osd::Format { capacity: 0 }), &root).good();
    client.ask(Osd::CreatePartition { requested: P }).send().bad_field(82);
    sealed(&client, client.ask(Osd::CreatePartition { requested: P }), &root).good();
    // The new partition demands what the root says of new ones.
    client.ask(client_create(&client).cdb.command).send().bad_field(82);
    let methods = client.ask(Osd::GetAttributes(Id::ROOT)).get(&[root_security::SUPPORTED_METHODS]);
    let ran = sealed(&client, methods, &root).good();
    assert_eq!(ran.data[24..26], [0, 0x0F]);
}
