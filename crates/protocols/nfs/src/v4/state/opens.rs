//! Owns the opens: share access and share deny of each open owner and file (RFC 8881 §9.7, §9.9).

use std::collections::{BTreeMap, BTreeSet};

use invariant::invariant;
use rpc::xdr::{Malformed, Reader, Writer};

use super::files::FileNo;
use super::saved::{Saved, saved};
use super::stateid::{StateNo, bumped};
use crate::v4::{ClientId, ShareAccess, ShareDeny, Status};

/// The access that an open has, and the access that it denies to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// `share_access`, without the delegation that the client wants.
    pub access: ShareAccess,
    /// `share_deny`.
    pub deny: ShareDeny,
}

/// The pairs of access and deny that were opened and not downgraded: bit `4 * (access - 1) + deny`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Granted {
    pairs: u32,
}

impl Granted {
    fn bit(share: Share) -> u32 {
        1 << (4 * (share.access.code() - 1) + share.deny.code())
    }

    /// The pairs within `access` and `deny`, both sets of bits.
    fn within(self, access: u32, deny: u32) -> Self {
        let inside = |bit: &u32| (bit / 4 + 1) & !access == 0 && (bit % 4) & !deny == 0;
        let pairs = self.pairs & (0..12).filter(inside).fold(0, |all, bit| all | 1 << bit);
        Granted { pairs }
    }

    /// The union of all pairs, as sets of bits.
    fn union(self) -> (u32, u32) {
        let pairs = (0..12).filter(|bit| self.pairs & 1 << bit != 0);
        pairs.fold((0, 0), |(access, deny), bit| (access | (bit / 4 + 1), deny | (bit % 4)))
    }
}

/// An open of a file by an open owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) client: ClientId,
    pub(super) file: FileNo,
    owner: Box<[u8]>,
    pub(super) seqid: u32,
    granted: Granted,
}

saved! {
    Granted { pairs }
    Open { client, file, owner, seqid, granted }
}

impl Open {
    pub(super) fn reads(&self) -> bool {
        self.granted.union().0 & ShareAccess::Read.code() != 0
    }

    pub(super) fn writes(&self) -> bool {
        self.granted.union().0 & ShareAccess::Write.code() != 0
    }
}

/// For each bit, the number of a file's opens that have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    access: [u32; 2],
    deny: [u32; 2],
}

impl Counts {
    fn change(&mut self, (access, deny): (u32, u32), by: impl Fn(u32) -> u32) {
        for bit in 0..2 {
            if access & 1 << bit != 0 {
                self.access[bit] = by(self.access[bit]);
            }
            if deny & 1 << bit != 0 {
                self.deny[bit] = by(self.deny[bit]);
            }
        }
    }

    fn conflicts(&self, access: u32, deny: u32) -> bool {
        (0..2).any(|bit| {
            access & 1 << bit != 0 && self.deny[bit] > 0 || deny & 1 << bit != 0 && self.access[bit] > 0
        })
    }
}

/// All opens. Fields after the first are derived from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Opens {
    opens: BTreeMap<StateNo, Open>,
    by_owner: BTreeMap<(ClientId, FileNo, Box<[u8]>), StateNo>,
    by_file: BTreeMap<FileNo, (Counts, BTreeSet<StateNo>)>,
    of_client: BTreeMap<ClientId, BTreeSet<StateNo>>,
}

impl Saved for Opens {
    fn save(&self, to: &mut Writer<'_>) {
        self.opens.save(to);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut all = Opens::default();
        for (number, open) in BTreeMap::<StateNo, Open>::load(from)? {
            all.insert(number, open);
        }
        Ok(all)
    }
}

impl Opens {
    pub(super) fn len(&self) -> usize {
        self.opens.len()
    }

    pub(super) fn get(&self, number: StateNo) -> Option<&Open> {
        self.opens.get(&number)
    }

    pub(super) fn of_client(&self, client: ClientId) -> impl Iterator<Item = StateNo> {
        self.of_client.get(&client).into_iter().flatten().copied()
    }

    pub(super) fn count(&self, client: ClientId) -> usize {
        self.of_client.get(&client).map_or(0, BTreeSet::len)
    }

    pub(super) fn has_file(&self, file: FileNo) -> bool {
        self.by_file.contains_key(&file)
    }

    /// Whether an open of the file permits writing.
    pub(super) fn has_writer(&self, file: FileNo) -> bool {
        self.by_file.get(&file).is_some_and(|(counts, _)| counts.access[1] > 0)
    }

    /// The opens that `access` and `deny`, sets of bits, conflict with (RFC 8881 §9.7). Opens of
    /// the same owner count as well.
    pub(super) fn conflicts(&self, file: FileNo, access: u32, deny: u32) -> Vec<(StateNo, &Open)> {
        let Some((counts, opens)) = self.by_file.get(&file) else { return Vec::new() };
        if !counts.conflicts(access, deny) {
            return Vec::new();
        }
        let opens = opens.iter().filter_map(|it| {
            let open = self.opens.get(it);
            invariant!(open.is_some(), "open {it} of file {file} has gone");
            Some((*it, open?))
        });
        let conflicts = opens.filter(|(_, open)| {
            let (others_access, others_deny) = open.granted.union();
            access & others_deny != 0 || deny & others_access != 0
        });
        conflicts.collect()
    }

    /// The open of this owner and file.
    pub(super) fn find(&self, client: ClientId, file: FileNo, owner: &[u8]) -> Option<StateNo> {
        self.by_owner.get(&(client, file, owner.into())).copied()
    }

    /// Adds an open without a conflict, as number `number` unless the owner has the file open.
    /// Returns its number and seqid.
    pub(super) fn open(
        &mut self,
        number: StateNo,
        client: ClientId,
        file: FileNo,
        owner: &[u8],
        share: Share,
    ) -> (StateNo, u32) {
        let bit = Granted::bit(share);
        if let Some((number, mut open)) = self.find(client, file, owner).and_then(|it| self.take(it)) {
            open.granted.pairs |= bit;
            open.seqid = bumped(open.seqid);
            let seqid = open.seqid;
            self.insert(number, open);
            return (number, seqid);
        }
        let granted = Granted { pairs: bit };
        self.insert(number, Open { client, file, owner: owner.into(), seqid: 1, granted });
        (number, 1)
    }

    /// OPEN_DOWNGRADE to the union of some of the opens (RFC 8881 §18.18). Returns the seqid.
    ///
    /// # Errors
    /// INVAL if there is no such union.
    pub(super) fn downgrade(&mut self, number: StateNo, share: Share) -> Result<u32, Status> {
        let wanted = (share.access.code(), share.deny.code());
        let open = self.opens.get(&number).ok_or(Status::BadStateid)?;
        let left = open.granted.within(wanted.0, wanted.1);
        if left.union() != wanted {
            return Err(Status::Inval);
        }
        let (number, mut open) = self.take(number).ok_or(Status::BadStateid)?;
        open.granted = left;
        open.seqid = bumped(open.seqid);
        let seqid = open.seqid;
        self.insert(number, open);
        Ok(seqid)
    }

    fn insert(&mut self, number: StateNo, open: Open) {
        let (counts, opens) = self.by_file.entry(open.file).or_default();
        counts.change(open.granted.union(), |it| it + 1);
        opens.insert(number);
        self.by_owner.insert((open.client, open.file, open.owner.clone()), number);
        self.of_client.entry(open.client).or_default().insert(number);
        self.opens.insert(number, open);
    }

    /// CLOSE.
    pub(super) fn take(&mut self, number: StateNo) -> Option<(StateNo, Open)> {
        let open = self.opens.remove(&number)?;
        self.by_owner.remove(&(open.client, open.file, open.owner.clone()));
        if let Some((counts, opens)) = self.by_file.get_mut(&open.file) {
            counts.change(open.granted.union(), |it| {
                invariant!(it > 0, "more opens of file {} ended than began", open.file);
                it.saturating_sub(1)
            });
            let had = opens.remove(&number);
            invariant!(had, "open {number} is not one of file {}", open.file);
            if opens.is_empty() {
                self.by_file.remove(&open.file);
            }
        }
        if let Some(opens) = self.of_client.get_mut(&open.client) {
            let had = opens.remove(&number);
            invariant!(had, "open {number} is not one of its client's");
            if opens.is_empty() {
                self.of_client.remove(&open.client);
            }
        }
        Some((number, open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(1);

    fn share(access: ShareAccess, deny: ShareDeny) -> Share {
        Share { access, deny }
    }

    /// RFC 8881 §18.18.3: "exactly equal to the union of … some subset of the OPENs in effect".
    #[test]
    fn a_downgrade_is_to_a_union_that_was_opened() {
        let mut opens = Opens::default();
        opens.open(1, CLIENT, 1, b"owner", share(ShareAccess::Both, ShareDeny::None));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Read, ShareDeny::None)), Err(Status::Inval));
        assert_eq!(opens.open(2, CLIENT, 1, b"owner", share(ShareAccess::Read, ShareDeny::None)), (1, 2));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Read, ShareDeny::Write)), Err(Status::Inval));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Read, ShareDeny::None)), Ok(3));
        assert!(!opens.has_writer(1));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Both, ShareDeny::None)), Err(Status::Inval));
    }

    #[test]
    fn a_union_of_two_opens_is_one_to_downgrade_to() {
        let mut opens = Opens::default();
        opens.open(1, CLIENT, 1, b"owner", share(ShareAccess::Read, ShareDeny::None));
        opens.open(1, CLIENT, 1, b"owner", share(ShareAccess::Write, ShareDeny::None));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Both, ShareDeny::None)), Ok(3));
        assert_eq!(opens.downgrade(1, share(ShareAccess::Write, ShareDeny::None)), Ok(4));
    }

    /// RFC 8881 §9.7: the request's access against denials, its denials against accesses.
    #[test]
    fn access_and_deny_conflict_in_both_directions() {
        let mut opens = Opens::default();
        opens.open(1, CLIENT, 1, b"owner", share(ShareAccess::Read, ShareDeny::Write));
        assert!(opens.conflicts(1, 1, 0).is_empty());
        assert_eq!(opens.conflicts(1, 2, 0).len(), 1);
        assert_eq!(opens.conflicts(1, 3, 0).len(), 1);
        assert_eq!(opens.conflicts(1, 1, 1).len(), 1);
        assert!(opens.conflicts(1, 1, 2).is_empty());
        assert!(opens.conflicts(2, 3, 3).is_empty());
        opens.take(1);
        assert_eq!(opens, Opens::default());
    }
}
