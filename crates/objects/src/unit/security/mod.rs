//! What security asks of a command before it runs, and the attributes of the Policy/Security pages. The unit calls these;
//! a unit without a security method (NOSEC) lets everything through.

use std::collections::BTreeSet;

use device::Nexus;
use osd::attributes::{AttributeId, Page};
use osd::{Id, ObjectType};

use super::OsdUnit;
use super::attributes::Setting;
use super::failure::Failure;
use super::subject::Subject;
use super::task::Task;
use crate::store::Change;

impl OsdUnit {
    /// Whether `task` may run, before anything of it does: capability, integrity check value, nonce. The CDB is as it came in
    /// `task.command.cdb.bytes()`, a CDB continuation in `task.continuation`.
    pub(super) async fn authorize(&self, task: &mut Task<'_>) -> Result<(), Failure> {
        task.progress.done(
            osd::sense::function::COMMAND_CAPABILITY
                | osd::sense::function::SET_CAPABILITY
                | osd::sense::function::GET_CAPABILITY,
        );
        Ok(())
    }

    /// The security token of VPD page B1h for a nexus.
    pub(super) fn security_token(&self, nexus: &Nexus) -> Vec<u8> {
        let mut token = self.options.system_id[..8].to_vec();
        token.extend(nexus.id.0.to_be_bytes());
        token
    }

    /// Appends the value of an attribute of a security page that is worked out rather than kept by the store. False for others.
    pub(super) fn security_value(
        &self,
        _subject: &Subject,
        _attribute: AttributeId,
        _out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Adds the numbers of the attributes that [`Self::security_value`] knows of a page.
    pub(super) fn security_numbers(
        &self,
        _subject: &Subject,
        _page: Page,
        _numbers: &mut BTreeSet<u32>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Adds the steps that set an attribute of a security page. False for one that cannot be set.
    pub(super) fn security_set(
        &self,
        _id: Id,
        _of_type: ObjectType,
        _setting: &Setting,
        _change: &mut Change,
    ) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Adds what security keeps of an object that is created.
    pub(super) fn security_creation(&self, _id: Id, _change: &mut Change) -> Result<(), Failure> {
        Ok(())
    }

    /// Everything was removed, the root's attributes too.
    pub(super) fn security_formatted(&self) -> Result<(), Failure> {
        Ok(())
    }
}
