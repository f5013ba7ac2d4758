//! The registration of an entity (RFC 4171 §5.6.5.1): its portals, its targets, and the portals of
//! each target.

use std::net::{IpAddr, SocketAddr};

use crate::attribute::{NODE_TARGET, PROTOCOL_ISCSI, Tag, Writer, scn};
use crate::header::{Function, flags};
use crate::message::Message;

/// A portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portal {
    /// Address and port on which it listens.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub group: u16,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias; empty for none.
    pub alias: String,
    /// The portal groups that serve it.
    pub groups: Vec<u16>,
}

/// The portal to which the server sends its inquiries and notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inquiries {
    /// One of the entity's portal addresses.
    pub at: IpAddr,
    /// TCP port at that address.
    pub port: u16,
    /// Seconds between inquiries; 0 for none.
    pub interval_s: u32,
}

/// A whole registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// The entity's identifier, usually a host name.
    pub id: String,
    /// Requested lifetime of the registration, seconds.
    pub period_s: u32,
    /// Its portals.
    pub portals: Vec<Portal>,
    /// Its targets.
    pub targets: Vec<Target>,
    /// The portal that answers inquiries.
    pub inquiries: Option<Inquiries>,
}

impl Entity {
    /// The name that represents the entity in requests. `None` if it has no target, and so nothing
    /// to register.
    pub fn source(&self) -> Option<&str> {
        self.targets.first().map(|target| target.name.as_str())
    }

    /// Registers the entity and replaces any earlier registration under its identifier.
    pub fn register(&self, transaction: u16) -> Option<Message> {
        let mut out = self.begin()?;
        self.put_entity(&mut out);
        let mut asked = false;
        for portal in &self.portals {
            out.address(Tag::PORTAL_IP_ADDRESS, portal.address.ip());
            out.number(Tag::PORTAL_TCP_UDP_PORT, portal.address.port().into());
            let here = self.inquiries.filter(|to| !asked && to.at == portal.address.ip());
            if let Some(to) = here {
                asked = true;
                out.number(Tag::SCN_PORT, to.port.into());
                if to.interval_s > 0 {
                    out.number(Tag::ESI_INTERVAL, to.interval_s).number(Tag::ESI_PORT, to.port.into());
                }
            }
        }
        self.targets.iter().for_each(|target| self.put_target(&mut out, target));
        let mut message = Message::request(Function::DevAttrReg, transaction, &out);
        message.flags |= flags::REPLACE;
        Some(message)
    }

    /// Registers or updates one target and keeps the other objects.
    pub fn register_target(&self, target: &Target, transaction: u16) -> Option<Message> {
        let mut out = self.begin()?;
        self.put_target(&mut out, target);
        Some(Message::request(Function::DevAttrReg, transaction, &out))
    }

    /// Deregisters one target.
    pub fn deregister_target(&self, name: &str, transaction: u16) -> Option<Message> {
        let mut out = Writer::new();
        out.text(Tag::ISCSI_NAME, self.source()?).tag(Tag::DELIMITER).text(Tag::ISCSI_NAME, name);
        Some(Message::request(Function::DevDereg, transaction, &out))
    }

    /// Deregisters everything.
    pub fn deregister(&self, transaction: u16) -> Option<Message> {
        let mut out = Writer::new();
        out.text(Tag::ISCSI_NAME, self.source()?).tag(Tag::DELIMITER).text(Tag::ENTITY_IDENTIFIER, &self.id);
        Some(Message::request(Function::DevDereg, transaction, &out))
    }

    /// Queries the entity itself. Any message of the entity renews its registration (§6.2.7). The
    /// answer has the lifetime, or shows that the server has lost the registration.
    pub fn refresh(&self, transaction: u16) -> Option<Message> {
        let mut out = self.begin()?;
        out.tag(Tag::ENTITY_IDENTIFIER).tag(Tag::REGISTRATION_PERIOD);
        Some(Message::request(Function::DevAttrQry, transaction, &out))
    }

    /// Subscribes to changes of the entity's own targets (SCNReg, §5.6.5.5).
    pub fn watch(&self, transaction: u16) -> Option<Message> {
        let mut out = Writer::new();
        let source = self.source()?;
        out.text(Tag::ISCSI_NAME, source).text(Tag::ISCSI_NAME, source).tag(Tag::DELIMITER);
        out.number(Tag::ISCSI_SCN_BITMAP, scn::TARGETS_AND_SELF | scn::REMOVED | scn::ADDED | scn::UPDATED);
        Some(Message::request(Function::ScnReg, transaction, &out))
    }

    /// The source, and the entity as the key.
    fn begin(&self) -> Option<Writer> {
        let mut out = Writer::new();
        out.text(Tag::ISCSI_NAME, self.source()?).text(Tag::ENTITY_IDENTIFIER, &self.id).tag(Tag::DELIMITER);
        Some(out)
    }

    fn put_entity(&self, out: &mut Writer) {
        out.text(Tag::ENTITY_IDENTIFIER, &self.id);
        out.number(Tag::ENTITY_PROTOCOL, PROTOCOL_ISCSI);
        out.number(Tag::REGISTRATION_PERIOD, self.period_s);
    }

    fn put_target(&self, out: &mut Writer, target: &Target) {
        out.text(Tag::ISCSI_NAME, &target.name);
        out.number(Tag::ISCSI_NODE_TYPE, NODE_TARGET);
        if !target.alias.is_empty() {
            out.text(Tag::ISCSI_ALIAS, &target.alias);
        }
        for portal in &self.portals {
            // A portal that does not serve the target has a NULL tag: it is in none of the target's
            // groups.
            match target.groups.contains(&portal.group) {
                true => out.number(Tag::PORTAL_GROUP_TAG, portal.group.into()),
                false => out.tag(Tag::PORTAL_GROUP_TAG),
            };
            out.address(Tag::PG_PORTAL_IP_ADDRESS, portal.address.ip());
            out.number(Tag::PG_PORTAL_TCP_UDP_PORT, portal.address.port().into());
        }
    }
}

/// The lifetime of a registration in seconds, from the answer to [`Entity::register`] or
/// [`Entity::refresh`].
pub fn period(answer: &Message) -> Option<u32> {
    let operating = answer.operating().ok()?;
    operating.iter().find(|one| one.tag == Tag::REGISTRATION_PERIOD).and_then(|one| one.number())
}
