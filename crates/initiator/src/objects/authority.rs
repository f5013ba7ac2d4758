//! Who proves to a device that a command is permitted.

use osd::{AttributeId, Capability, Cdb, Id, ObjectType, Version};

use super::{Attribute, ObjectError, Objects};

/// Has credentials. One of it serves all commands of a device.
pub trait Authority {
    /// Puts a capability into `cdb`, and request integrity check value and nonce where the security method wants them. Everything else of the CDB is final; what it
    /// `get`s and `set`s besides is told for the choice of the credential.
    ///
    /// # Errors
    /// [`ObjectError::Authority`] if there is no credential for it.
    fn authorize(&self, cdb: &mut Cdb, get: &[AttributeId], set: &[Attribute]) -> Result<(), ObjectError>;
}

impl Objects {
    /// A device without security takes a capability that permits everything, and does not look at it.
    pub(super) fn authorize(
        &self,
        cdb: &mut Cdb,
        get: &[AttributeId],
        set: &[Attribute],
    ) -> Result<(), ObjectError> {
        match &self.authority {
            Some(authority) => authority.authorize(cdb, get, set),
            None => {
                let kind = cdb.command.object_type().unwrap_or(kind_of(cdb.command.id()));
                cdb.capability = Capability::all(Version::Osd2, kind, cdb.command.id());
                Ok(())
            }
        }
    }
}

/// The type of what an id names, as far as the id tells.
fn kind_of(id: Id) -> ObjectType {
    match id {
        _ if id.is_root() => ObjectType::Root,
        _ if id.is_partition() => ObjectType::Partition,
        _ => ObjectType::User,
    }
}
