//! A security manager's side (docs/src/objects/security.md). `stag osd keys` agrees on keys with a
//! device and keeps them in a file, `stag osd grant` signs capabilities with them. The file is a
//! secret, readable by its owner only.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

use backing::durable;
use iscsi_client::objects::{Attribute, Authority, ObjectError, Objects, Operation};
use osd::attributes::numbers::{partition_security, root_information, root_security};
use osd::cdb::{KeyToSet, SetKey, SetMasterKey};
use osd::security::{Algorithm, Credential, KeyPair, Method, dh};
use osd::{AttributeId, Capability, Command, Id, ObjectType, Permissions, Version};

use super::error::OsdError;
use super::session::Opened;
use crate::args::osd::{Grant, Keys};
use crate::args::place::Object;
use crate::secret;

/// The file's name in errors about its contents.
const WHAT_IT_IS: &str = "the file is made by stag osd keys, one for each device";
/// The algorithm of all that is made here.
const ALGORITHM: Algorithm = Algorithm::HmacSha256;
/// The version of the working key that signs.
const VERSION: u8 = 0;

/// The keys of one device, as the file has them: lines of a name and hexadecimal.
#[derive(Debug, Default)]
struct Ring {
    system: [u8; 20],
    keys: BTreeMap<String, KeyPair>,
}

impl Ring {
    fn read(path: &Path) -> Result<Self, OsdError> {
        let text = std::fs::read_to_string(path).map_err(OsdError::io(path))?;
        let mut ring = Self::default();
        for (line, number) in
            text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        {
            let wrong =
                || OsdError::wrong(format!("{}: line {number} is no key", path.display()), WHAT_IT_IS);
            let (name, hex) = line.rsplit_once(' ').ok_or_else(wrong)?;
            let bytes = super::names::value(&format!("hex:{hex}")).map_err(|_| wrong())?;
            if name == "system" {
                ring.system = bytes.as_slice().try_into().map_err(|_| wrong())?;
            } else {
                ring.keys.insert(name.to_owned(), KeyPair::from_bytes(&bytes).ok_or_else(wrong)?);
            }
        }
        Ok(ring)
    }

    /// Replaces the file, durably: a key that was agreed on must not be lost.
    fn write(&self, path: &Path) -> Result<(), OsdError> {
        let mut text =
            format!("# Keys of an object-based storage device: a secret.\nsystem {}\n", hex(&self.system));
        for (name, pair) in &self.keys {
            let _ = writeln!(text, "{name} {}", hex(&pair.to_bytes()));
        }
        durable::replace(path, text.as_bytes()).map_err(OsdError::io(path))
    }

    fn key(&self, name: &str) -> Result<&KeyPair, OsdError> {
        self.keys.get(name).ok_or_else(|| {
            OsdError::wrong(
                format!("there is no key of {name}"),
                "make it: stag osd keys URL/PARTITION --keys FILE",
            )
        })
    }

    /// A credential that permits `permissions` and is signed with the key of `name`.
    fn sign(&self, name: &str, capability: Capability) -> Result<Credential, OsdError> {
        let key = &self.key(name)?.authentication;
        Credential::sign(Version::Osd2, capability, self.system, key)
            .ok_or_else(|| OsdError::wrong("the algorithm is not known", WHAT_IT_IS))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn partition_name(partition: u64) -> String {
    format!("partition {partition:#x}")
}

fn working_name(partition: u64) -> String {
    format!("working {partition:#x} {VERSION}")
}

/// One credential for one command.
struct Only(Credential);

impl Authority for Only {
    fn credential(&self, _: &Command, _: &[AttributeId], _: &[Attribute]) -> Result<Credential, ObjectError> {
        Ok(self.0.clone())
    }
}

/// Everything on the root or a partition, proved by the method that is enough whatever is demanded
/// there.
fn everything(partition: u64) -> Capability {
    let kind = if partition == 0 { ObjectType::Root } else { ObjectType::Partition };
    Capability {
        integrity_algorithm: ALGORITHM as u8,
        security_method: Method::AllData as u8,
        key_version: VERSION,
        ..Capability::all(Version::Osd2, kind, Id::partition(partition))
    }
}

fn random<const N: usize>() -> Result<[u8; N], OsdError> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            Err(OsdError::wrong(format!("no random numbers: {error}"), "look at the system's /dev/urandom"))
        }
    }
}

/// `keys`.
///
/// # Errors
/// The device's, and the file's.
pub async fn keys(args: &Keys) -> Result<String, OsdError> {
    secret::forbid_core_dumps();
    if args.url.object.is_some() {
        return Err(OsdError::wrong(
            "an object has no keys",
            "leave what stands behind the partition's id out",
        ));
    }
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = manage(&opened.device, args).await;
    opened.close(result).await?;
    Ok(String::new())
}

async fn manage(device: &Objects, args: &Keys) -> Result<(), OsdError> {
    let path = &args.keys;
    let mut ring = if path.exists() { Ring::read(path)? } else { first(device, args).await? };
    let partition = args.url.partition.unwrap_or(0);
    // A run that was cut off may have left the master key alone.
    if !ring.keys.contains_key("root") {
        set_key(device, args, &mut ring, KeyToSet::Root, 0).await?;
    }
    for partition in [0, partition] {
        if !ring.keys.contains_key(&partition_name(partition)) {
            set_key(device, args, &mut ring, KeyToSet::Partition, partition).await?;
        }
    }
    if args.renew || !ring.keys.contains_key(&working_name(partition)) {
        set_key(device, args, &mut ring, KeyToSet::Working, partition).await?;
    }
    if let Some(method) = args.demand {
        let credential = ring.sign(&working_name(partition), everything(partition))?;
        let attribute =
            if partition == 0 { root_security::DEFAULT_METHOD } else { partition_security::DEFAULT_METHOD };
        let set = Operation::new(Command::SetAttributes(Id::partition(partition)))
            .set(attribute, vec![Method::from(method) as u8]);
        run(device, args, credential, set).await?;
    }
    Ok(())
}

/// Runs one command with one credential.
async fn run(
    device: &Objects,
    args: &Keys,
    credential: Credential,
    operation: Operation,
) -> Result<Vec<u8>, OsdError> {
    let device =
        device.clone().with_authority(Rc::new(Only(credential))).await.map_err(OsdError::at(&args.url))?;
    Ok(device.run(operation).await.map_err(OsdError::at(&args.url))?.data.to_vec())
}

/// The master key of a device that has none.
async fn first(device: &Objects, args: &Keys) -> Result<Ring, OsdError> {
    let at = || OsdError::at(&args.url);
    let asked = Operation::new(Command::GetAttributes(Id::ROOT)).get([root_information::SYSTEM_ID]);
    let reply = device.run(asked).await.map_err(at())?;
    let system = reply.value(root_information::SYSTEM_ID).and_then(|value| value.try_into().ok());
    let system =
        system.ok_or_else(|| OsdError::wrong("the device has no system id", "it cannot have security"))?;
    let exponent = dh::Exponent::new(random()?);
    let key_id: [u8; 7] = random()?;
    let step = |step: u8, data: Vec<u8>, allocation: u32| {
        let parameter_len = data.len() as u32; // at most 260
        let set = SetMasterKey { step, group: dh::GROUP, key_id, parameter_len, allocation };
        Operation::new(Command::SetMasterKey(set)).writing(runtime::Buf::from(data))
    };
    let sent = step(0, dh::exchange(&exponent.public()), dh::EXCHANGE_LEN as u32);
    let theirs = device.run(sent).await.map_err(at())?.data.to_vec();
    let shared = dh::parse_exchange(&theirs).and_then(|theirs| exponent.shared(&theirs).ok());
    let shared = shared
        .ok_or_else(|| OsdError::wrong("the device's public value is none", "do not trust this device"))?;
    let master = dh::master(ALGORITHM, None, &shared);
    let proof = dh::confirmation(ALGORITHM, &master.authentication, &key_id);
    let ring = Ring { system, keys: BTreeMap::from([("master".to_owned(), master)]) };
    // Before the device changes to it: afterwards there is no other way in.
    ring.write(&args.keys)?;
    device.run(step(1, proof.bytes().to_vec(), 0)).await.map_err(at())?;
    Ok(ring)
}

/// SET KEY with a seed of its own; the file has the new key before the device does.
async fn set_key(
    device: &Objects,
    args: &Keys,
    ring: &mut Ring,
    key: KeyToSet,
    partition: u64,
) -> Result<(), OsdError> {
    let (parent, name) = match key {
        KeyToSet::Root => ("master".to_owned(), "root".to_owned()),
        KeyToSet::Partition => ("root".to_owned(), partition_name(partition)),
        KeyToSet::Working => (partition_name(partition), working_name(partition)),
    };
    let seed = random()?;
    let credential = ring.sign(&parent, everything(partition))?;
    let pair = ring.key(&parent)?.derive(ALGORITHM, &seed);
    let old = ring.keys.insert(name.clone(), pair);
    ring.write(&args.keys)?;
    let set = SetKey { key, partition, version: VERSION, key_id: random()?, seed };
    let result = run(device, args, credential, Operation::new(Command::SetKey(set))).await;
    if let Err(error) = result {
        match old {
            Some(old) => ring.keys.insert(name, old),
            None => ring.keys.remove(&name),
        };
        ring.write(&args.keys)?;
        return Err(error);
    }
    Ok(())
}

pub fn grant(args: &Grant) -> Result<String, OsdError> {
    secret::forbid_core_dumps();
    let ring = Ring::read(&args.keys)?;
    let partition = args.partition;
    let mut capability = everything(partition);
    capability.security_method = Method::from(args.method) as u8;
    match &args.object {
        None => {}
        Some(Object::Id(id)) if partition != 0 => {
            let kind = if args.collection { ObjectType::Collection } else { ObjectType::User };
            let all = Capability::all(Version::Osd2, kind, Id::new(partition, *id));
            (capability.object_type, capability.descriptor_type) = (all.object_type, all.descriptor_type);
            capability.object = all.object;
        }
        Some(_) => {
            return Err(OsdError::wrong(
                "a credential names its object by its id",
                "stag osd stat shows a path's id",
            ));
        }
    }
    capability.permissions = permissions(&args.permit)?;
    if let Some(seconds) = args.expires {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        capability.expires =
            (now.as_millis() as u64).saturating_add(seconds.saturating_mul(1000)) & 0xFFFF_FFFF_FFFF;
    }
    capability.policy_tag = args.tag;
    // Two grants are never the same.
    capability.discriminator = random()?;
    Ok(format!("{}\n", hex(&ring.sign(&working_name(partition), capability)?.to_bytes())))
}

/// Permissions by their names, whatever the case; ALL for all of them.
fn permissions(names: &[String]) -> Result<Permissions, OsdError> {
    let mut out = Permissions::NONE;
    for name in names {
        let upper = name.to_ascii_uppercase();
        let found = Permissions::NAMES.iter().find(|(known, _)| *known == upper).map(|(_, bit)| *bit);
        match found {
            Some(bit) => out |= bit,
            None if upper == "ALL" => out = Permissions::ALL,
            None => {
                let known: Vec<_> = Permissions::NAMES.iter().map(|(name, _)| *name).collect();
                return Err(OsdError::wrong(
                    format!("{name} is no permission"),
                    format!("ALL or: {}", known.join(", ")),
                ));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_as_it_was_written_and_what_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let pair = KeyPair::from_secret(ALGORITHM, &KeyPair::initial(), b"secret");
        let keys = BTreeMap::from([(working_name(0x10000), pair.clone()), ("master".to_owned(), pair)]);
        let ring = Ring { system: [7; 20], keys };
        ring.write(&path).unwrap();
        let found = Ring::read(&path).unwrap();
        assert_eq!((found.system, &found.keys), (ring.system, &ring.keys));
        // A file of that name that is in the way is not written to.
        std::fs::write(dir.path().join("keys.new"), "").unwrap();
        ring.write(&path).unwrap();
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "master 00\n").unwrap();
        assert!(Ring::read(&path).is_err());
    }

    #[test]
    fn a_grant_is_a_credential_of_what_was_permitted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let pair = KeyPair::from_secret(ALGORITHM, &KeyPair::initial(), b"secret");
        let keys = BTreeMap::from([(working_name(0x10000), pair.clone())]);
        Ring { system: [7; 20], keys }.write(&path).unwrap();
        let mut args = Grant {
            partition: 0x10000,
            object: Some(Object::Id(0x10005)),
            keys: path,
            permit: vec!["read".into(), "GET_ATTR".into()],
            method: crate::args::osd::MethodArg::Alldata,
            expires: Some(60),
            tag: 9,
            collection: false,
        };
        let line = grant(&args).unwrap();
        let bytes = super::super::names::value(&format!("hex:{}", line.trim())).unwrap();
        let credential = Credential::from_bytes(&bytes).unwrap();
        let capability = credential.capability;
        assert_eq!(capability.permissions, Permissions::READ | Permissions::GET_ATTR);
        assert_eq!((capability.partition, capability.object, capability.policy_tag), (0x10000, 0x10005, 9));
        assert_eq!((capability.object_type, capability.security_method), (0x80, 3));
        assert!(capability.expires > 0);
        let signed = Credential::sign(Version::Osd2, capability, [7; 20], &pair.authentication).unwrap();
        assert_eq!(signed, credential);
        args.permit = vec!["everything".into()];
        assert!(grant(&args).is_err());
        args.permit = vec!["all".into()];
        args.partition = 0x20000;
        assert!(grant(&args).is_err());
    }
}
