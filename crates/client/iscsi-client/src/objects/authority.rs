//! The authority for a device's commands: attaches the proof of permission to a command and checks
//! the proof of the answer. osd::security has the computations, docs/src/objects/security.md the
//! terms.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use osd::security::credential::Credential;
use osd::security::{self, Algorithm, Direction, Key, Method, Sealer, nonce};
use osd::{AttributeId, Capability, Cdb, Command, ObjectType, Version, offset};
use runtime::{Buf, Chain};

use super::{Attribute, ObjectError, Objects};

/// A source of credentials. One instance serves all commands of a device.
pub trait Authority {
    /// The credential for a command that also `get`s and `set`s attributes.
    ///
    /// # Errors
    /// [`ObjectError::Authority`] if there is none.
    fn credential(
        &self,
        command: &Command,
        get: &[AttributeId],
        set: &[Attribute],
    ) -> Result<Credential, ObjectError>;
}

/// A list of credentials: the first one for a command's object serves it.
#[derive(Clone, Debug)]
pub struct Credentials(pub Vec<Credential>);

impl Authority for Credentials {
    fn credential(
        &self,
        command: &Command,
        _: &[AttributeId],
        _: &[Attribute],
    ) -> Result<Credential, ObjectError> {
        let (id, kind) = (command.id(), command.object_type());
        let fits = |credential: &&Credential| {
            let capability = &credential.capability;
            let of_kind = match kind {
                Some(kind) => capability.object_type == kind.code(),
                None => matches!(
                    ObjectType::from_code(capability.object_type),
                    Some(ObjectType::User | ObjectType::Collection)
                ),
            };
            of_kind
                && (capability.partition == id.partition || id.is_root())
                && (capability.object == id.object || capability.object == 0 || id.object == 0)
        };
        // A command that reads another partition than its own, or creates one, needs the root's
        // credential.
        let root = |credential: &&Credential| {
            let capability = &credential.capability;
            capability.object_type == ObjectType::Root.code() && capability.partition == 0
        };
        if of_root(command)
            && let Some(credential) = self.0.iter().find(root)
        {
            return Ok(credential.clone());
        }
        // A credential for this very object takes precedence over one for all objects.
        let exact = self.0.iter().filter(fits).find(|one| one.capability.object == id.object);
        exact.or_else(|| self.0.iter().find(fits)).cloned().ok_or_else(|| {
            ObjectError::Authority(format!(
                "none of those that there are is for {} of {id}",
                command.action()
            ))
        })
    }
}

/// Whether `command` uses the root's capability, although its object is a partition or an object.
fn of_root(command: &Command) -> bool {
    command.needs().object_type == Some(ObjectType::Root) && command.object_type() != Some(ObjectType::Root)
}

/// The security state for all commands.
pub(super) struct Security {
    pub authority: Rc<dyn Authority>,
    /// The security token of this session (VPD page B1h).
    pub token: Vec<u8>,
}

/// The proof of one command.
#[derive(Clone)]
pub(super) struct Proof {
    method: Method,
    algorithm: Algorithm,
    key: Key,
    nonce: [u8; 12],
}

impl Objects {
    /// The same device, with proofs by `authority`. Reads the security token.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn with_authority(self, authority: Rc<dyn Authority>) -> Result<Self, ObjectError> {
        let page = self.unit.vpd(osd::data::VPD_SECURITY_TOKEN).await;
        let token = match page {
            Ok(token) => token,
            // The device has no security.
            Err(error) if error.is_unsupported() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { security: Some(Rc::new(Security { authority, token })), ..self })
    }

    /// Puts a capability into `cdb`. A device without security gets one that permits everything,
    /// and ignores it.
    pub(super) fn authorize(
        &self,
        cdb: &mut Cdb,
        get: &[AttributeId],
        set: &[Attribute],
    ) -> Result<Option<Proof>, ObjectError> {
        let Some(security) = &self.security else {
            let kind = cdb.command.object_type().unwrap_or(ObjectType::User);
            cdb.capability = Capability::all(Version::Osd2, kind, cdb.command.id());
            return Ok(None);
        };
        let credential = security.authority.credential(&cdb.command, get, set)?;
        cdb.capability = credential.capability;
        let unknown = || ObjectError::Authority("its security method or algorithm is not known".into());
        let method = Method::from_code(credential.capability.security_method).ok_or_else(unknown)?;
        if method == Method::NoSec {
            return Ok(None);
        }
        let algorithm = credential.algorithm().ok_or_else(unknown)?;
        let mut random = [0; 6];
        iscsi::chap::os_random(&mut random)
            .map_err(|_| ObjectError::Authority("the system has no randomness".into()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let proof = Proof { method, algorithm, key: credential.key, nonce: nonce::nonce(now_ms, random) };
        if method == Method::CapKey {
            cdb.security.icv = security::capkey_request(algorithm, &proof.key, &security.token).field();
        } else {
            cdb.security.nonce = proof.nonce;
        }
        Ok(Some(proof))
    }
}

impl Proof {
    /// Whether commands and answers carry proofs.
    pub fn is_of_commands(&self) -> bool {
        self.method >= Method::CmdRsp
    }

    fn seals_data(&self) -> bool {
        self.method == Method::AllData
    }

    /// Adds the proof of a CDB continuation.
    pub fn continuation(&self, bytes: &mut [u8]) {
        if !self.is_of_commands() {
            return;
        }
        let value = security::continuation(self.algorithm, &self.key, &self.nonce, bytes).field();
        let at = osd::continuation::ICV_AT;
        if let Some(field) = bytes.get_mut(at..at + value.len()) {
            field.copy_from_slice(&value);
        }
    }

    /// Seals Data-Out; `counts` are the bytes of command data, set attributes and get attributes.
    /// Appends to `out`.
    pub fn data_out(&self, cdb: &mut Cdb, out: &mut Chain, counts: [u64; 3]) -> Result<(), ObjectError> {
        if !self.seals_data() || out.is_empty() {
            return Ok(());
        }
        let at = end_of(out.len() as u64)?;
        let gap = usize::try_from(at).unwrap_or(usize::MAX) - out.len();
        if gap > 0 {
            out.push(Buf::from(vec![0; gap]));
        }
        let mut sealer = Sealer::new(self.algorithm, &self.key, &self.nonce, Direction::Out);
        out.for_each_slice(|slice| sealer.update(slice));
        out.push(Buf::from(sealer.finish(counts)));
        cdb.security.data_out_icv = Some(at);
        Ok(())
    }

    /// Requests sealed Data-In. Returns its total length in bytes.
    pub fn data_in(&self, cdb: &mut Cdb, len: u64) -> Result<u64, ObjectError> {
        if !self.seals_data() || len == 0 {
            return Ok(len);
        }
        let at = end_of(len)?;
        cdb.security.data_in_icv = Some(at);
        Ok(at + Sealer::information_len(self.algorithm, Direction::In) as u64)
    }

    /// Adds the proof of the CDB, which is otherwise final.
    pub fn command(&self, cdb: &mut Cdb) -> Result<(), ObjectError> {
        if self.is_of_commands() {
            let bytes = cdb.encode().map_err(|error| ObjectError::Argument(error.to_string()))?;
            cdb.security.icv = security::command_request(self.algorithm, &self.key, &bytes, cdb.form).field();
        }
        Ok(())
    }

    /// Checks that Data-In is from the device, by its seal at `at`.
    pub fn verify_data_in(&self, data: &Chain, at: Option<u64>) -> Result<(), ObjectError> {
        let Some(at) = at.filter(|_| self.seals_data()) else { return Ok(()) };
        let forged =
            ObjectError::Data("Data-In is not what the device sent: its integrity check value is wrong");
        let Ok(at) = usize::try_from(at) else { return Err(forged) };
        if data.len() < at {
            return Err(forged);
        }
        let mut sealed = data.clone();
        let covered = sealed.split_to(at);
        let information = sealed.to_vec();
        let count = |at: usize| information.get(at..at + 8).and_then(super::number).unwrap_or(0);
        let mut sealer = Sealer::new(self.algorithm, &self.key, &self.nonce, Direction::In);
        covered.for_each_slice(|slice| sealer.update(slice));
        match sealer.verify([count(0), count(8), 0], &information) {
            true => Ok(()),
            false => Err(forged),
        }
    }

    /// Whether an answer with sense data is from the device.
    pub fn is_answered_by(&self, status: u8, sense: &[u8]) -> bool {
        !self.is_of_commands()
            || security::check_response(self.algorithm, &self.key, &self.nonce, status, sense)
    }

    /// Whether `value`, of the Current Command page, proves that the device returned GOOD.
    pub fn is_good(&self, value: &[u8]) -> bool {
        !self.is_of_commands() || security::response(self.algorithm, &self.key, &self.nonce, 0, &[]).is(value)
    }
}

fn end_of(len: u64) -> Result<u64, ObjectError> {
    offset::round_up(len, Version::Osd2).ok_or_else(|| ObjectError::Argument("the data is too long".into()))
}
