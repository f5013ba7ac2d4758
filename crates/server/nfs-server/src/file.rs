//! [`File`]: a file that a call is about, and for whom.

use std::rc::Rc;
use std::sync::Arc;

use nfs::v3::access;
use tree::{Attributes, Caller, Kind, NodeId, Permissions, Tree, TreeError};

use crate::caller::Identity;
use crate::config::ClientRule;
use crate::model::Exported;
use crate::tally::{Tallies, Tally};

/// A file that a call is about, and for whom.
#[derive(Clone)]
pub(crate) struct File {
    pub export: Arc<Exported>,
    pub tally: Rc<Tally>,
    pub node: NodeId,
    pub rule: ClientRule,
    pub caller: Caller,
}

impl File {
    pub(crate) fn new(
        export: &Arc<Exported>,
        node: NodeId,
        rule: ClientRule,
        identity: &Identity,
        tallies: &Tallies,
    ) -> Self {
        let caller = identity.squashed(&rule);
        Self { export: export.clone(), tally: tallies.of(export.id), node, rule, caller }
    }

    pub(crate) fn tree(&self) -> &dyn Tree {
        &*self.export.config.tree
    }

    /// Counts errors of the medium.
    pub(crate) fn note(&self, error: TreeError) {
        if matches!(error, TreeError::Io(_) | TreeError::NoSpace) {
            self.tally.count(|counts| counts.errors += 1);
        }
    }

    /// The caller's rights, as bits of [`access`], and the file's attributes. Clients ask when a
    /// program opens the file: what READ and WRITE permit beyond the mode, because they know of no
    /// opens, is not among them (RFC 1813 §4.4).
    pub(crate) async fn access(&self) -> Result<(u32, Attributes), TreeError> {
        let granted = self.tree().access(&self.caller, &self.node, Permissions::ALL).await?;
        let (may, of) = (granted.permissions, granted.attributes);
        let mut bits = 0;
        if may.contains(Permissions::READ) {
            bits |= access::READ;
        }
        if may.contains(Permissions::WRITE) && !self.rule.read_only {
            bits |= access::MODIFY | access::EXTEND;
            bits |= if of.kind == Kind::Directory { access::DELETE } else { 0 };
        }
        if may.contains(Permissions::EXECUTE) {
            bits |= if of.kind == Kind::Directory { access::LOOKUP } else { access::EXECUTE };
        }
        Ok((bits, of))
    }
}
