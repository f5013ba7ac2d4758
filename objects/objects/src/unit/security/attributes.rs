//! The Policy/Security pages: their computed attributes, and the checks of those that are set.

use std::collections::BTreeSet;

use osd::attributes::numbers::{
    collection_security, partition_security as p, root_security as r, time, user_security,
};
use osd::attributes::{AttributeId, Page};
use osd::security::nonce::{MAX_LIMIT, Window};
use osd::security::{Algorithm, Method, dh};
use osd::{Id, ObjectType};

use super::super::OsdUnit;
use super::super::attributes::Setting;
use super::super::failure::Failure;
use super::super::subject::Subject;
use super::keyring::Name;
use super::{NONCES, is_security};
use crate::store::Change;

/// Numbers of the root's page that are worked out, or have a default.
const ROOT: &[u32] =
    &[0x1, 0x2, 0x3, 0x6, 0x7, 0x9, 0xA, 0x7FFD, 0x7FFE, 0x7FFF, 0x8000_0000, 0x8000_0001, 0x8000_0010];
/// The same of a partition's page.
const PARTITION: &[u32] = &[0x1, 0x2, 0x3, 0x4, 0x5, 0x7FFF];
/// Identifiers of working keys, on both pages: partition zero's are the root's.
const WORKING: std::ops::RangeInclusive<u32> = 0x8000..=0x800F;

impl OsdUnit {
    /// Appends the value of an attribute of a security page that is worked out rather than kept by
    /// the store. False for others.
    pub(in super::super) fn security_value(
        &self,
        subject: &Subject,
        attribute: AttributeId,
        out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        let start = out.len();
        let default = Window::default();
        let kept = |out: &mut Vec<u8>, default: &[u8]| -> Result<(), Failure> {
            if !self.store.attribute(subject.id, attribute.page.0, attribute.number, out)? {
                out.extend(default);
            }
            Ok(())
        };
        let key = |out: &mut Vec<u8>, name: Name| -> Result<(), Failure> {
            if let Some(kept) = self.key(name)? {
                out.extend(kept.id);
            }
            Ok(())
        };
        let partition = subject.id.partition;
        match attribute {
            r::DEFAULT_METHOD | r::PARTITION_DEFAULT_METHOD | p::DEFAULT_METHOD => kept(out, &[0])?,
            r::OLDEST_NONCE => kept(out, &time(default.oldest))?,
            r::NEWEST_NONCE => kept(out, &time(default.newest))?,
            p::OLDEST_NONCE | p::NEWEST_NONCE => {
                let window = self.nonce_window(partition)?;
                let limit = if attribute == p::OLDEST_NONCE { window.oldest } else { window.newest };
                out.extend(time(limit));
            }
            r::SUPPORTED_METHODS => {
                let bits = Method::ALL.iter().fold(0u16, |bits, method| bits | 1 << *method as u8);
                out.extend(bits.to_be_bytes());
            }
            r::ADJUSTABLE_CLOCK => out.extend(time(self.now())),
            r::BOOT_EPOCH => out.extend(self.security.epoch.to_be_bytes()),
            r::MASTER_KEY_ID => key(out, Name::Master)?,
            r::ROOT_KEY_ID => key(out, Name::Root)?,
            p::NONCE_LIST_DEPTH => out.extend(u16::try_from(NONCES).unwrap_or(u16::MAX).to_be_bytes()),
            p::FROZEN_KEYS => kept(out, &[0, 0])?,
            AttributeId { page: r::PAGE | p::PAGE, number: 0x7FFF } => key(out, Name::Partition(partition))?,
            AttributeId { page: r::PAGE | p::PAGE, number } if WORKING.contains(&number) => {
                key(out, Name::Working(partition, (number - WORKING.start()) as u8))?; // at most 15
            }
            AttributeId { page: r::PAGE, number: 0x8000_0000 } => out.push(Algorithm::HmacSha1 as u8),
            AttributeId { page: r::PAGE, number: 0x8000_0001 } => out.push(Algorithm::HmacSha256 as u8),
            r::DH_GROUPS => out.push(dh::GROUP),
            _ => {}
        }
        Ok(out.len() > start)
    }

    /// Adds the numbers of the attributes that [`Self::security_value`] knows of a page.
    pub(in super::super) fn security_numbers(
        &self,
        subject: &Subject,
        page: Page,
        numbers: &mut BTreeSet<u32>,
    ) -> Result<(), Failure> {
        let known = match page {
            r::PAGE => ROOT,
            p::PAGE => PARTITION,
            _ => return Ok(()),
        };
        let mut value = Vec::new();
        for number in known.iter().copied().chain(WORKING) {
            value.clear();
            if self.security_value(subject, AttributeId::new(page, number), &mut value)? {
                numbers.insert(number);
            }
        }
        Ok(())
    }

    /// Adds the steps that set an attribute of a security page. False for one that cannot be set.
    pub(in super::super) fn security_set(
        &self,
        id: Id,
        of_type: ObjectType,
        setting: &Setting,
        change: &mut Change,
    ) -> Result<bool, Failure> {
        let attribute = setting.attribute;
        if !is_security(attribute.page) || !attribute.page.suits(of_type) {
            return Ok(false);
        }
        let len = match attribute {
            r::DEFAULT_METHOD | r::PARTITION_DEFAULT_METHOD | p::DEFAULT_METHOD => 1,
            p::FROZEN_KEYS => 2,
            p::POLICY_TAG
            | p::OBJECT_POLICY_TAG
            | user_security::POLICY_TAG
            | collection_security::POLICY_TAG => 4,
            r::OLDEST_NONCE | r::NEWEST_NONCE | p::OLDEST_NONCE | p::NEWEST_NONCE => 6,
            _ => return Ok(false),
        };
        let value = setting.value.as_slice();
        if !value.is_empty() && value.len() != len {
            return Err(setting.refuse(true));
        }
        if len == 6 && osd::attributes::number(value) > MAX_LIMIT {
            return Err(setting.refuse(true));
        }
        if len == 1 && value.first().is_some_and(|code| *code != 0) {
            let known = value.first().copied().and_then(Method::from_code).is_some();
            // A method without keys would lock every client out, the one that sets it too.
            if !known || self.key(Name::Master)?.is_none() {
                return Err(setting.refuse(true));
            }
            // Before it is kept: a command that comes meanwhile asks for nothing.
            self.security.demand();
        }
        change.set_attribute(id, attribute.page.0, attribute.number, value);
        Ok(true)
    }
}
